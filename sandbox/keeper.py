"""Processes that end with the worker, with all they started: the worker's end of a keeper.

A keeper is one small process (`sandbox.keeper_process`) between a worker and whatever the worker
starts for others. It belongs to the event loop that it was started from. A keeper that is killed
takes all that it started along; only who kills its guardian first outlives it.
"""

import asyncio
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

from sandbox import keeper_process
from schemas.errors import WorkFailed

GONE_CODE = -9
"""How a child has ended whose keeper was killed: with it."""
END_S = 30.0
PACKET_BYTES = 128 << 10
"""The kernel takes about 200 KB at once."""

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Confinement:
    """What a process of a box is bound by, beside rlimits."""

    name: str = ""
    """What its command line begins with, in place of the program's path."""
    user: int = 0
    """On the host; 0 is the keeper's own."""
    cgroups: tuple[str, ...] = ()
    """Files that take its pid."""
    group: str = ""
    """The folder of the box's control group. Each program has a group of its own below it, by which
    all that it has started ends in one go (`sandbox.program_groups`)."""
    within: int = 0
    """The first process of a box: it enters the same namespaces and gives up all rights."""
    mounts: int = 0
    """The number of the mount namespace that this is the first process of, should it be gone."""
    seccomp: str = ""
    """A filter in base64 for a process that enters, empty for none."""
    staged: tuple[str, ...] = ()
    """Directories that it is to find at `sandbox.namespaces.STAGE`, whoever may walk to them."""
    listen: int = 0
    """The port on which a process that enters is to listen, in place of a program."""


class KeptProcess:
    """One process, and all that it started."""

    def __init__(self, keeper: "Keeper", number: int) -> None:
        self._keeper = keeper
        self.number = number
        self.started: asyncio.Future[int | str] = keeper.loop.create_future()
        """Its pid, or why there is none."""
        self.ended: asyncio.Future[int] = keeper.loop.create_future()

    async def wait(self) -> int:
        """Return its exit code, a signal's number negative, when nothing is left below it."""
        return await asyncio.shield(self.ended)

    async def end(self) -> None:
        """Kill it with all below it; return when nothing is left. May be called twice.

        The kill is under way before anything is waited for: whoever is cancelled here may leave.
        """
        if not self.ended.done():
            self._keeper.ask({"end": self.number})
        await self.wait()


class Keeper:
    """Starts processes that end with this one. `start` makes it."""

    def __init__(
        self, directory: Path, worker: socket.socket, process: subprocess.Popen[bytes]
    ) -> None:
        self.directory = directory
        """Removed when the keeper ends, whatever ends it."""
        self.loop = asyncio.get_running_loop()
        self.alive = True
        self.borrowers = 0
        self._worker = worker
        self._process = process
        self._numbers = count()
        self._kept: dict[int, KeptProcess] = {}
        self._unsent: list[tuple[bytes, list[int]]] = []
        self.loop.add_reader(worker, self._hear)

    @classmethod
    def start(cls) -> "Keeper":
        """Start a keeper with an empty directory of its own; blocks for some milliseconds."""
        directory = Path(tempfile.mkdtemp(prefix="rollcall-")).resolve()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        source = keeper_process.__file__
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
        ours.setblocking(False)
        return cls(directory, ours, process)

    @classmethod
    def borrow(cls) -> "Keeper":
        """The keeper that all on this event loop share; start it if there is none."""
        loop = asyncio.get_running_loop()
        keeper = _SHARED.get(loop)
        if keeper is None or not keeper.alive:
            keeper = _SHARED[loop] = cls.start()
        keeper.borrowers += 1
        return keeper

    async def give_back(self) -> None:
        """End the keeper when nobody has borrowed it any more."""
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
    ) -> KeptProcess:
        """Start a program, with these descriptors as its standard input, output, error, and more.

        `limits` are rlimits by name, such as `RLIMIT_NOFILE`. Raises WorkFailed: `not_started`, or
        `keeper_gone`, which may be tried with a new keeper.
        """
        kept = KeptProcess(self, next(self._numbers))
        request: dict[str, object] = {
            "argv": list(argv),
            "env": dict(env),
            "cwd": cwd,
            "limits": dict(limits or {}),
        }
        if confinement:
            request |= _confining(confinement, argv)
        self._kept[kept.number] = kept
        self.ask({"start": kept.number, **request}, standard)
        try:
            pid = await asyncio.shield(kept.started)
        except asyncio.CancelledError:
            self.ask({"end": kept.number})
            raise
        if isinstance(pid, str):
            msg = f"{argv[0]} cannot be started in {cwd}: {pid}"
            code = "not_started" if self.alive else "keeper_gone"
            raise WorkFailed(code, msg, retriable=not self.alive)
        return kept

    def ask(self, request: Mapping[str, Any], descriptors: Sequence[int] = ()) -> None:
        """Send a request, at once or as soon as there is room for it."""
        packet = json.dumps(request).encode()
        if not self.alive:
            self._hear_of({"started": request.get("start"), "failed": "its keeper is gone"})
        elif len(packet) > PACKET_BYTES:
            failed = f"arguments and variables of {len(packet):,} bytes, {PACKET_BYTES:,} can be"
            self._hear_of({"started": request.get("start"), "failed": failed})
        else:
            try:
                self._unsent.append((packet, _doubles(descriptors)))
            except OSError as error:
                self._hear_of({"started": request.get("start"), "failed": str(error)})
            else:
                self._send()

    async def close(self) -> None:
        """End everything that was started, and the keeper. May be called twice."""
        self._lose()
        try:
            await asyncio.to_thread(self._process.wait, END_S)
        except subprocess.TimeoutExpired:
            log.warning("keeper_not_ended", pid=self._process.pid, after_s=END_S)
        await asyncio.to_thread(remove, self.directory)  # should the keeper have been killed

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
        """Take what the keeper says; nothing at all means that it is gone."""
        try:
            text = self._worker.recv(PACKET_BYTES)
        except BlockingIOError:
            return
        except OSError:
            text = b""
        if text:
            self._hear_of(json.loads(text))
        else:
            log.warning("keeper_gone", pid=self._process.pid, processes=len(self._kept))
            self._lose()

    def _hear_of(self, packet: Mapping[str, Any]) -> None:
        if "started" in packet:
            kept = self._kept.get(packet["started"])
            if kept and "failed" in packet:
                del self._kept[kept.number]
                _settle(kept.ended, GONE_CODE)
            if kept:
                _settle(kept.started, packet.get("pid") or packet["failed"])
        else:
            _settle(self._kept.pop(packet["ended"]).ended, packet["code"])

    def _lose(self) -> None:
        """The keeper is ending, and all it holds with it."""
        if not self.alive:
            return
        self.alive = False
        self.loop.remove_reader(self._worker)
        self.loop.remove_writer(self._worker)
        self._worker.close()
        for _, descriptors in self._unsent:
            _close(descriptors)
        self._unsent.clear()
        for kept in self._kept.values():
            _settle(kept.started, "its keeper is gone")
            _settle(kept.ended, GONE_CODE)
        self._kept.clear()


_SHARED: dict[asyncio.AbstractEventLoop, Keeper] = {}


def remove(directory: Path) -> None:
    """Remove a tree of any depth and with names of any kind, if it is there; blocks."""
    if directory.exists():
        subprocess.run(keeper_process.removal(str(directory)), check=False)


def _confining(confinement: Confinement, argv: Sequence[str]) -> dict[str, object]:
    """As the keeper is told it."""
    fields = {name: value for name, value in asdict(confinement).items() if name != "name"}
    if not confinement.name:
        return fields
    return {**fields, "program": argv[0], "argv": [confinement.name, *argv[1:]]}


def _settle(future: "asyncio.Future[Any]", value: object) -> None:
    if not future.done():
        future.set_result(value)


def _doubles(descriptors: Sequence[int]) -> list[int]:
    """Of all of them or of none. Raises OSError where there is no room for so many open files."""
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
