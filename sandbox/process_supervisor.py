"""The worker's end of a supervisor, whose processes end with the worker, with all they started.

A supervisor is one small process (`rollcall.sandbox.supervisor_process`) between a worker and the
programs that it runs in boxes, or a fork server between it and its agents
(`rollcall.sandbox.agents.fork_server`). It belongs to the event loop that it was started from. If a
supervisor is killed, all its processes end; only a process that kills the supervisor's reaper
first can outlive it.
"""

import asyncio
import base64
import json
import os
import socket
import subprocess
import sys
import tempfile
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path
from typing import Any

import structlog

from rollcall.sandbox import supervisor_process as supervisor_process
from rollcall.schemas.errors import FailureCode, WorkFailed

GONE_CODE = -9
"""The exit code of a child whose supervisor was killed."""
END_S = 30.0
PACKET_BYTES = 128 << 10
"""The most bytes of a packet; the kernel accepts about 200 KB."""

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Confinement:
    """The restrictions of a process of a box, beside rlimits."""

    name: str = ""
    """The first word of its command line, in place of the program's path."""
    user: int = 0
    """Its user id on the host; 0 is the supervisor's own."""
    cgroups: tuple[str, ...] = ()
    """Control group files that its pid is written to."""
    group: str = ""
    """The folder of the box's control group. Each program has a group of its own below it, by which
    all its processes are killed at once (`rollcall.sandbox.program_groups`)."""
    within: int = 0
    """The pid of a box's first process, whose namespaces it enters before it drops all rights."""
    mounts: int = 0
    """The number of that process's mount namespace, to detect that its pid was reused."""
    seccomp: str = ""
    """A seccomp filter in base64 for a process that enters; empty for none."""
    staged: tuple[str, ...] = ()
    """Directories that are mounted at `rollcall.sandbox.namespaces.STAGE`, so it needs no access
    to them."""
    listen: int = 0
    """The port on which a process that enters listens, instead of running a program."""


class SupervisedProcess:
    """One process, with all that it started."""

    def __init__(self, supervisor: "ProcessSupervisor", number: int) -> None:
        self._supervisor = supervisor
        self.number = number
        self.started: asyncio.Future[int | str] = supervisor.loop.create_future()
        """Its pid, or the error of its start."""
        self.ended: asyncio.Future[int] = supervisor.loop.create_future()
        self.lost = False
        """True if it ended with its supervisor."""
        self.output = bytearray()
        """Its output, if it is an agent: the head and the tail, reported at its end."""
        self.output_bytes = 0
        """The size of its whole output."""

    async def begun(self) -> int | str:
        """Wait until it has started; return its pid, or the error. It ends if this is cancelled."""
        try:
            return await asyncio.shield(self.started)
        except asyncio.CancelledError:
            self.kill()
            raise

    async def wait(self) -> int:
        """Wait until its process tree has ended; return its exit code, or minus a signal."""
        return await asyncio.shield(self.ended)

    async def end(self) -> None:
        """Kill its process tree, and wait until it has ended. May be called twice.

        The kill is sent before the first await, so cancelling this call does not prevent it.
        """
        self.kill()
        await self.wait()

    def kill(self) -> None:
        """Kill its process tree at once; do nothing if it has ended."""
        if not self.ended.done():
            self._supervisor.ask({"end": self.number})


class ProcessSupervisor:
    """A supervisor, which starts processes that end with this one. `start` makes it."""

    def __init__(
        self, directory: Path, worker: socket.socket, process: subprocess.Popen[bytes]
    ) -> None:
        """Use a process that was started with the other end of the socket `worker`."""
        worker.setblocking(False)
        self.directory = directory
        """Its directory, which is removed when the supervisor ends, however it ends."""
        self.loop = asyncio.get_running_loop()
        self.alive = True
        self.ready: asyncio.Future[Mapping[str, Any]] = self.loop.create_future()
        """The report of a fork server on its import; empty if it has ended."""
        self.borrowers = 0
        self._worker = worker
        self._process = process
        self._numbers = count()
        self._kept: dict[int, SupervisedProcess] = {}
        self._unsent: list[tuple[bytes, list[int]]] = []
        self.loop.add_reader(worker, self._hear)

    @property
    def pid(self) -> int:
        """The pid of its reaper."""
        return self._process.pid

    @property
    def idle(self) -> bool:
        """True if it has no processes."""
        return not self._kept

    @classmethod
    def start(cls) -> "ProcessSupervisor":
        """Start a supervisor with an empty directory of its own; blocks for some milliseconds."""
        directory = Path(tempfile.mkdtemp(prefix="rollcall-")).resolve()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        source = supervisor_process.__file__
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-I", "-S", source, str(theirs.fileno()), str(directory)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env={},
                cwd="/",
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        return cls(directory, ours, process)

    @classmethod
    def borrow(cls) -> "ProcessSupervisor":
        """Return the shared supervisor of this event loop; start it if there is none."""
        loop = asyncio.get_running_loop()
        supervisor = _SHARED.get(loop)
        if supervisor is None or not supervisor.alive:
            supervisor = _SHARED[loop] = cls.start()
        supervisor.borrowers += 1
        return supervisor

    async def give_back(self) -> None:
        """Return a borrowed supervisor, and end it after its last borrower."""
        self.borrowers -= 1
        if self.borrowers == 0:
            if _SHARED.get(self.loop) is self:
                del _SHARED[self.loop]
            await self.close()

    async def spawn(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: str,
        standard: tuple[int, ...],
        limits: Mapping[str, int] | None = None,
        confinement: Confinement | None = None,
    ) -> SupervisedProcess:
        """Start a program, with these descriptors as its standard input, output, error, and more.

        `limits` are rlimits by name, such as `RLIMIT_NOFILE`. Raises WorkFailed: `not_started`, or
        `keeper_gone`, which may be retried with a new supervisor.
        """
        request: dict[str, object] = {
            "argv": list(argv),
            "env": dict(env),
            "cwd": cwd,
            "limits": dict(limits or {}),
        }
        if confinement:
            request |= _confining(confinement, argv)
        kept = self.begin(request, standard)
        pid = await kept.begun()
        if isinstance(pid, str):
            msg = f"{argv[0]} cannot be started in {cwd}: {pid}"
            code = FailureCode.NOT_STARTED if self.alive else FailureCode.KEEPER_GONE
            raise WorkFailed(code, msg, retriable=not self.alive)
        return kept

    def begin(
        self, request: Mapping[str, object], descriptors: Sequence[int] = ()
    ) -> SupervisedProcess:
        """Send the request for a process; await its `begun`."""
        number = next(self._numbers)
        kept = self._kept[number] = SupervisedProcess(self, number)
        self.ask({"start": number, **request}, descriptors)
        return kept

    def ask(self, request: Mapping[str, Any], descriptors: Sequence[int] = ()) -> None:
        """Send a request, now or when the socket is writable."""
        packet = json.dumps(request).encode()
        if not self.alive:
            self._hear_of({"started": request.get("start"), "failed": "its supervisor is gone"})
        elif len(packet) > PACKET_BYTES:
            failed = f"arguments and variables of {len(packet):,} bytes, {PACKET_BYTES:,} can be"
            self._hear_of({"started": request.get("start"), "failed": failed})
        else:
            try:
                # The caller may close its descriptors before the packet is sent.
                self._unsent.append((packet, _doubles(descriptors)))
            except OSError as error:
                self._hear_of({"started": request.get("start"), "failed": str(error)})
            else:
                self._send()

    async def close(self) -> None:
        """End everything that was started, and the supervisor. May be called twice."""
        self._lose()
        try:
            await asyncio.to_thread(self._process.wait, END_S)
        except subprocess.TimeoutExpired:
            log.warning("supervisor_not_ended", pid=self._process.pid, after_s=END_S)
        await asyncio.to_thread(remove_tree, self.directory)  # in case the supervisor was killed

    def _send(self) -> None:
        while self._unsent:
            packet, descriptors = self._unsent[0]
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", descriptors))]
            try:
                self._worker.sendmsg([packet], rights if descriptors else [])
            except BlockingIOError:
                self.loop.add_writer(self._worker, self._send)
                return
            except OSError:
                self._lose()
                return
            del self._unsent[0]
            _close(descriptors)
        self.loop.remove_writer(self._worker)

    def _hear(self) -> None:
        """Receive a packet of the supervisor; an empty one means that it has ended."""
        try:
            text = self._worker.recv(PACKET_BYTES)
        except BlockingIOError:
            return
        except OSError:
            text = b""
        if text:
            self._hear_of(json.loads(text))
        else:
            log.warning("supervisor_gone", pid=self._process.pid, processes=len(self._kept))
            self._lose()

    def _hear_of(self, packet: Mapping[str, Any]) -> None:
        if "started" in packet:
            kept = self._kept.get(packet["started"])
            if kept and "failed" in packet:
                del self._kept[kept.number]
                _settle(kept.ended, GONE_CODE)
            if kept:
                _settle(kept.started, packet.get("pid") or packet["failed"])
        elif "output" in packet:
            kept = self._kept[packet["output"]]
            kept.output += base64.b64decode(packet["piece"])
            kept.output_bytes = packet["size"]
        elif "ended" in packet:
            _settle(self._kept.pop(packet["ended"]).ended, packet["code"])
        else:
            _settle(self.ready, packet)
            if "failed" in packet:
                self._lose()  # it ends itself

    def _lose(self) -> None:
        """Mark the supervisor and all its processes as ended."""
        if not self.alive:
            return
        self.alive = False
        self.loop.remove_reader(self._worker)
        self.loop.remove_writer(self._worker)
        self._worker.close()
        for _, descriptors in self._unsent:
            _close(descriptors)
        self._unsent.clear()
        _settle(self.ready, {})
        for kept in self._kept.values():
            kept.lost = True
            _settle(kept.started, "its supervisor is gone")
            _settle(kept.ended, GONE_CODE)
        self._kept.clear()


_SHARED: dict[asyncio.AbstractEventLoop, ProcessSupervisor] = {}


def remove_tree(directory: Path) -> None:
    """Remove a tree of any depth and with any names, if it exists; blocks."""
    if directory.exists():
        subprocess.run(supervisor_process.removal(str(directory)), check=False)


def _confining(confinement: Confinement, argv: Sequence[str]) -> dict[str, object]:
    """Return the confinement's fields of a request to the supervisor."""
    fields = {name: value for name, value in asdict(confinement).items() if name != "name"}
    if not confinement.name:
        return fields
    return {**fields, "program": argv[0], "argv": [confinement.name, *argv[1:]]}


def _settle(future: "asyncio.Future[Any]", value: object) -> None:
    if not future.done():
        future.set_result(value)


def _doubles(descriptors: Sequence[int]) -> list[int]:
    """Duplicate all descriptors, or none. Raises OSError if too many files are open."""
    made: list[int] = []
    try:
        made.extend(map(os.dup, descriptors))
    except OSError:
        _close(made)
        raise
    return made


def _close(descriptors: Sequence[int]) -> None:
    for fd in descriptors:
        os.close(fd)
