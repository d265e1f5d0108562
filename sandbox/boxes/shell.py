"""A persistent shell: directory, variables and functions stay from command to command.

A command that exceeds its time is killed with all that it started, and so is the shell; the next
command begins in a new one. The same holds if a command ends the shell (`exit`, `exec`, `kill $$`).
The new shell is opened at once: if it does not answer, the box has ended, and the command is not
blamed for that.
"""

import time
from collections.abc import Callable

from rollcall.sandbox.boxes.box import Box, BoxProgram, CommandResult
from rollcall.sandbox.boxes.frame import (
    SIGNALLED,
    TIMED_OUT,
    Frame,
    HeadAndTail,
    framed_code,
    quote,
)
from rollcall.sandbox.boxes.probe import memory_held, probe
from rollcall.schemas.errors import WorkFailed

OPEN_S = 20.0
"""Seconds in which a shell must answer; else its box counts as dead."""
LONGEST_BYTES = 1 << 20
NUL = "the command holds a NUL character, which no shell can be given; nothing was run\n"
TOO_LONG = "the command has {:,} bytes, and {:,} can be; nothing was run\n"
REFUSED = 2
KILLED = SIGNALLED + 9


class Shell:
    """The shell of one episode in one box, which runs commands one after the other.

    Without `stateful` each command runs in a subshell and starts with the initial state. The first
    directory is `workdir`, or the box's own directory if that is empty.
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
        self._first = f"cd -- {quote(workdir)}\n".encode() if workdir else b""
        self._head_chars, self._tail_chars = head_chars, tail_chars
        self._open_s = open_s
        self._program: BoxProgram | None = None
        self._status = 0

    async def run(
        self, command: str, *, timeout_s: float, whole: Callable[[bytes], None] | None = None
    ) -> CommandResult:
        """Run any command. Raises WorkFailed, as `rollcall.sandbox.boxes.probe` does.

        `whole` is called with the full output if part of it is left out of the result. If the call
        is cancelled, the command is killed, and the next one gets a new shell.
        """
        began = time.perf_counter()
        if wrong := _refused(command):
            return CommandResult(wrong, exit_code=REFUSED)
        program = self._program or await self._open()
        kept = HeadAndTail(self._head_chars, self._tail_chars, self._box.shown, whole)
        frame = Frame()
        self._program = None  # if this is cancelled, the next command opens a new one
        try:
            text = frame.around(command, status=self._status, subshell=self._subshell)
            code = await framed_code(program, frame, kept, text, timeout_s)
        finally:
            if frame.exit_code is None:
                await program.end()
        kept.add(frame.rest())
        output, elided = kept.text()
        ran = CommandResult(
            output,
            code,
            timed_out=code == TIMED_OUT,
            elided_chars=elided,
            ms=(time.perf_counter() - began) * 1000,
            fresh=frame.exit_code is None,
        )
        if code == KILLED and not ran.fresh:
            await probe(self._box)  # the OOM killer may have ended the command before the shell
        self._program = await self._open() if ran.fresh else program
        self._status = 0 if ran.fresh else code
        return ran

    async def close(self) -> None:
        """End the shell and what it left running. May be called twice."""
        program, self._program = self._program, None
        if program:
            await program.end()

    async def _open(self) -> BoxProgram:
        """Open a shell that has answered. Raises WorkFailed as `rollcall.sandbox.boxes.probe`."""
        try:
            program = await self._box.shell(self._open_s)
        except WorkFailed:
            await probe(self._box)
            program = await self._open_again()
        await program.write(self._first)
        self._status = 0
        return program

    async def _open_again(self) -> BoxProgram:
        """Open a second shell in a live box: the lack of memory that killed one may have passed.

        Raises WorkFailed: `box_spoilt` if this one was OOM-killed too, else `box_died`.
        """
        killed_before = (await self._box.usage()).oom_kills
        try:
            return await self._box.shell(self._open_s)
        except WorkFailed as error:
            if (await self._box.usage()).oom_kills > killed_before:
                raise memory_held() from error
            raise


def _refused(command: str) -> str:
    """Return why a command is not passed to a shell; empty if it is."""
    if "\0" in command:
        return NUL
    size = len(command.encode("utf-8", "replace"))
    return TOO_LONG.format(size, LONGEST_BYTES) if size > LONGEST_BYTES else ""
