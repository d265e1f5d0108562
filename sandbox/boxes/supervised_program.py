"""Programs that the worker's supervisor process starts, each with two pipes to the worker."""

import asyncio
import os
import socket
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path

from rollcall.sandbox import process_tree
from rollcall.sandbox.boxes.box import Usage
from rollcall.sandbox.boxes.pipes import ReadEnd, WriteEnd
from rollcall.sandbox.process_supervisor import Confinement, ProcessSupervisor, SupervisedProcess
from rollcall.schemas.errors import FailureCode, WorkFailed

LISTENS = b"listens"
"""The message with which `supervisor_process.hand_out` sends a socket."""


class SupervisedProgram:
    """A program that is a child of the supervisor; `start_program` makes it."""

    def __init__(
        self,
        supervisor: ProcessSupervisor,
        kept: SupervisedProcess,
        stdin: WriteEnd,
        output: ReadEnd,
    ) -> None:
        self._supervisor = supervisor
        self._kept = kept
        self._stdin = stdin
        self._output = output
        self.pid = int(kept.started.result())
        self.write = stdin.write
        self.close_input = stdin.close
        self.read = output.read
        self.ended = kept.ended.done

    async def wait(self) -> int:
        """Return its exit code. Raises WorkFailed(`box_died`) if it was the supervisor that
        ended."""
        code = await self._kept.wait()
        if not self._supervisor.alive:
            msg = "the supervisor of this worker's boxes was killed, and all boxes with it"
            raise WorkFailed(FailureCode.BOX_DIED, msg, retriable=True)
        return code

    async def end(self) -> None:
        try:
            await self._kept.end()
        finally:
            self._stdin.close()
            self._output.close()


async def start_program(
    supervisor: ProcessSupervisor,
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    cwd: str,
    limits: Mapping[str, int],
    confinement: Confinement | None = None,
) -> SupervisedProgram:
    """Start one. Raises WorkFailed: `box_died`, `box_unavailable` if no pipes can be opened."""
    theirs_in, ours_in, ours_out, theirs_out = _pipes()
    stdin, output = WriteEnd(ours_in), ReadEnd(ours_out)
    try:
        kept = await supervisor.spawn(
            argv,
            env=env,
            cwd=cwd,
            standard=(theirs_in, theirs_out, theirs_out),
            limits=limits,
            confinement=confinement,
        )
    except BaseException as error:
        stdin.close()
        output.close()
        if isinstance(error, WorkFailed):
            raise WorkFailed(FailureCode.BOX_DIED, str(error), retriable=True) from error
        raise
    finally:
        os.close(theirs_in)
        os.close(theirs_out)
    return SupervisedProgram(supervisor, kept, stdin, output)


class SupervisedPrograms:
    """The programs of one box, which share settings and end with it."""

    def __init__(
        self,
        supervisor: ProcessSupervisor,
        *,
        env: Mapping[str, str],
        cwd: str,
        limits: Mapping[str, int],
    ) -> None:
        self._supervisor = supervisor
        self.env = env
        self._cwd = cwd
        self._limits = limits
        self._programs: list[SupervisedProgram] = []

    async def start(
        self,
        argv: Sequence[str],
        env: Mapping[str, str] | None = None,
        confinement: Confinement | None = None,
    ) -> SupervisedProgram:
        """Start a program. Raises WorkFailed, as `start_program` does."""
        program = await start_program(
            self._supervisor,
            argv,
            env={**self.env, **(env or {})},
            cwd=self._cwd,
            limits=self._limits,
            confinement=confinement,
        )
        self._programs = [*self._running(), program]
        return program

    async def listen(self, port: int, confinement: Confinement) -> socket.socket:
        """Implement `Box.listen`."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with ours:
            with theirs:
                asked = replace(confinement, listen=port)
                kept = await self._asked(theirs.fileno(), asked)
            await kept.wait()
            ours.setblocking(False)  # the process has ended, so its message is there or never comes
            try:
                descriptors = socket.recv_fds(ours, len(LISTENS), 1)[1]
            except BlockingIOError:
                descriptors = []
        if not descriptors:
            msg = "a box has ended while somebody was to listen in it"
            raise WorkFailed(FailureCode.BOX_DIED, msg, retriable=True)
        return socket.socket(fileno=descriptors[0])

    async def _asked(self, descriptor: int, confinement: Confinement) -> SupervisedProcess:
        """Have the supervisor spawn a process that enters the box and only opens the socket."""
        try:
            return await self._supervisor.spawn(
                ("listen",), env={}, cwd="/", standard=(descriptor,), confinement=confinement
            )
        except WorkFailed as error:
            msg = f"nobody can listen in a box: {error}"
            died = error.code == FailureCode.KEEPER_GONE
            code = FailureCode.BOX_DIED if died else FailureCode.BOX_UNAVAILABLE
            raise WorkFailed(code, msg, retriable=True) from error

    def entrance(self, confinement: Confinement) -> Mapping[str, object]:
        """Implement `Box.entrance`."""
        return {**asdict(confinement), "limits": dict(self._limits)}

    async def usage(self) -> Usage:
        """Return the usage of running programs, for boxes without a control group."""
        return await asyncio.to_thread(of_trees, [each.pid for each in self._running()])

    async def end(self) -> None:
        """End all programs. May be called twice."""
        for program in self._programs:
            await program.end()

    def _running(self) -> list[SupervisedProgram]:
        return [each for each in self._programs if not each.ended()]


class SharedSupervisor:
    """The supervisor of an event loop, kept alive between boxes: it starts slower than a box."""

    def __init__(self) -> None:
        self._supervisor: ProcessSupervisor | None = None

    async def hold(self) -> None:
        """Borrow it, or a new one if it was killed. Raises WorkFailed(`box_unavailable`)."""
        if self._supervisor is None or not self._supervisor.alive:
            gone, self._supervisor = self._supervisor, borrow_supervisor()
            if gone is not None:
                await gone.give_back()

    async def let_go(self) -> None:
        """Give it back. May be called twice."""
        supervisor, self._supervisor = self._supervisor, None
        if supervisor is not None:
            await supervisor.give_back()


def rlimits(**most: int) -> dict[str, int]:
    """Return rlimits by the kernel's names, with core dumps off; limits of 0 are left out."""
    return {"RLIMIT_CORE": 0} | {name: number for name, number in most.items() if number}


def borrow_supervisor() -> ProcessSupervisor:
    """Borrow the supervisor of this event loop's boxes. Raises WorkFailed(`box_unavailable`)."""
    try:
        return ProcessSupervisor.borrow()
    except OSError as error:
        raise no_room(error) from error


def no_room(error: OSError) -> WorkFailed:
    """Return the error for a worker that may open no more files."""
    msg = f"this worker has no room for one more box: {error}; each has two open files (ulimit -n)"
    return WorkFailed(FailureCode.BOX_UNAVAILABLE, msg, retriable=True)


def _pipes() -> tuple[int, int, int, int]:
    """Open two pipes; return the read and write end of each."""
    try:
        first = os.pipe()
        try:
            return (*first, *os.pipe())
        except OSError:
            for end in first:
                os.close(end)
            raise
    except OSError as error:
        raise no_room(error) from error


CPU_FIELDS = slice(11, 15)
"""utime, stime, cutime, cstime, counted from after the name, which may hold any characters."""
RSS_FIELD = 21
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def of_trees(roots: Iterable[int]) -> Usage:
    """Sum the usage of processes and all descendants; ended children of orphans are missed."""
    below = list(roots)
    cpu_s, memory, alive = 0.0, 0, 0
    while below:
        pid = below.pop()
        below += process_tree.children(pid)
        with suppress(OSError):
            fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b") ")[2].split()
            cpu_s += sum(map(int, fields[CPU_FIELDS])) * _TICK_S
            memory += int(fields[RSS_FIELD]) * _PAGE_BYTES
            alive += 1
    return Usage(cpu_s, memory, alive)
