"""One framed command in a persistent shell, and the check that a shell answers."""

import asyncio

from rollcall.sandbox.boxes.box import BOX_DIED, BoxProgram
from rollcall.sandbox.boxes.frame import Frame, HeadAndTail
from rollcall.schemas.errors import WorkFailed

CHUNK_BYTES = 1 << 16
TIMED_OUT = -1
SIGNALLED = 128
QUIET = b"exec 2>/dev/null\n"
"""Silences the shell's own stderr; its errors about a command go to the command's output."""


async def framed_code(
    program: BoxProgram, frame: Frame, kept: HeadAndTail, text: bytes, timeout_s: float
) -> int:
    """Run a framed command; return its exit code, that of the ended shell, or TIMED_OUT."""
    try:
        async with asyncio.timeout(timeout_s):
            await program.write(text)
            while frame.exit_code is None:
                chunk = await program.read(CHUNK_BYTES)
                if not chunk:
                    code = await program.wait()
                    return code if code >= 0 else SIGNALLED - code
                kept.add(frame.take(chunk))
    except TimeoutError:
        return TIMED_OUT
    return frame.exit_code


async def answering(program: BoxProgram, within_s: float) -> BoxProgram:
    """Return a shell once it has answered; else end it and raise WorkFailed(`box_died`)."""
    frame = Frame()
    try:
        text = QUIET + frame.around(":", status=0, subshell=False)
        code = await framed_code(program, frame, HeadAndTail(0, 0, {}), text, within_s)
    finally:
        if frame.exit_code != 0:
            await program.end()
    if frame.exit_code != 0:
        how = f"within {within_s:g} s" if code == TIMED_OUT else f"but ends (exit code {code})"
        msg = f"a shell in the box does not answer {how}"
        raise WorkFailed(BOX_DIED, msg, retriable=True)
    return program
