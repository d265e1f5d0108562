"""One shell that goes on from command to command: directory, variables and functions stay.

A command that overstays its time is killed with all that it started, and so is the shell; the next
command begins in a new one. So it does where a command ends the shell (`exit`, `exec`, `kill $$`).
That one is opened at once: where it does not answer it was the box that ended, and no command is
blamed for it.
"""

import asyncio
import time
from collections.abc import Callable

from sandbox.boxes.box import Box, BoxProgram, Ran
from sandbox.boxes.frame import Frame, HeadAndTail, quoted
from sandbox.boxes.probe import probe
from schemas.errors import WorkFailed

CHUNK_BYTES = 1 << 16
OPEN_S = 20.0
"""A shell that does not answer in this time is in a box that is dead."""
TIMED_OUT = -1
LONGEST_BYTES = 1 << 20
NUL = "the command holds a NUL character, which no shell can be given; nothing was run\n"
TOO_LONG = "the command has {:,} bytes, and {:,} can be; nothing was run\n"
REFUSED = 2
SIGNALLED = 128
KILLED = SIGNALLED + 9


class Shell:
    """Runs the commands of one episode in one box, one after the other.

    Without `stateful` each command begins where the first one began, in a shell of its own. That is
    `workdir`, and the box's own directory where that is empty.
    """

    def __init__(
        self,
        box: Box,
        *,
        stateful: bool = True,
        workdir: str = "",
        head_chars: int = 5000,
        tail_chars: int = 5000,
        open_s: float = OPEN_S,
    ) -> None:
        self._box = box
        self._subshell = not stateful
        self._first = f"cd -- {quoted(workdir)}; " if workdir else ""
        self._head_chars, self._tail_chars = head_chars, tail_chars
        self._open_s = open_s
        self._program: BoxProgram | None = None
        self._status = 0

    async def run(
        self, command: str, *, timeout_s: float, whole: Callable[[bytes], None] | None = None
    ) -> Ran:
        """Run one command, whatever it says. Raises WorkFailed, as `sandbox.boxes.probe`.

        `whole` is given all of an output of which something is left out.

        Whoever is cancelled here finds a new shell next time; what ran is killed.
        """
        began = time.perf_counter()
        if wrong := _refused(command):
            return Ran(wrong, exit_code=REFUSED)
        program = self._program or await self._open()
        kept = HeadAndTail(self._head_chars, self._tail_chars, self._box.shown, whole)
        frame = Frame()
        self._program = None  # until its frame is closed
        try:
            code = await self._within(timeout_s, program, frame, kept, command)
        finally:
            if frame.exit_code is None:
                await program.end()
        kept.add(frame.rest())
        output, elided = kept.text()
        ran = Ran(
            output,
            code,
            timed_out=code == TIMED_OUT,
            elided_chars=elided,
            ms=(time.perf_counter() - began) * 1000,
            fresh=frame.exit_code is None,
        )
        if code == KILLED and not ran.fresh:
            await probe(self._box)  # what kills a box may come to the shell last
        self._program = await self._open() if ran.fresh else program
        self._status = 0 if ran.fresh else code
        return ran

    async def close(self) -> None:
        """End the shell and what it left running. May be called twice."""
        program, self._program = self._program, None
        if program:
            await program.end()

    async def _open(self) -> BoxProgram:
        """A shell that has answered. Raises WorkFailed, as `sandbox.boxes.probe`."""
        program = await self._box.start("/bin/sh")
        frame = Frame()
        try:
            unseen = HeadAndTail(0, 0, {})
            await self._within(
                self._open_s, program, frame, unseen, ":", f"{self._first}exec 2>/dev/null\n"
            )
        finally:
            if frame.exit_code != 0:
                await program.end()
        if frame.exit_code != 0:
            await probe(self._box)
            msg = f"a shell in the box does not answer within {self._open_s:g} s"
            raise WorkFailed("box_died", msg, retriable=True)
        self._status = 0
        return program

    async def _within(
        self,
        timeout_s: float,
        program: BoxProgram,
        frame: Frame,
        kept: HeadAndTail,
        command: str,
        before: str = "",
    ) -> int:
        """The exit code of the command, or of the shell if that has ended, or TIMED_OUT."""
        framed = frame.around(command, status=self._status, subshell=self._subshell)
        try:
            async with asyncio.timeout(timeout_s):
                await program.write(before.encode() + framed)
                while frame.exit_code is None:
                    chunk = await program.read(CHUNK_BYTES)
                    if not chunk:
                        code = await program.wait()
                        return code if code >= 0 else SIGNALLED - code
                    kept.add(frame.take(chunk))
        except TimeoutError:
            return TIMED_OUT
        return frame.exit_code


def _refused(command: str) -> str:
    """Why no shell is given a command; empty where one is."""
    if "\0" in command:
        return NUL
    size = len(command.encode("utf-8", "replace"))
    return TOO_LONG.format(size, LONGEST_BYTES) if size > LONGEST_BYTES else ""
