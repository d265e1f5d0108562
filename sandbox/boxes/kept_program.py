"""A program that the worker's keeper starts, spoken to by two pipes."""

import os
from collections.abc import Mapping, Sequence

from sandbox.boxes.pipes import ReadEnd, WriteEnd
from sandbox.keeper import Confinement, Keeper, KeptProcess
from schemas.errors import WorkFailed


class KeptProgram:
    """A child of the keeper; `start_program` makes it."""

    def __init__(self, keeper: Keeper, kept: KeptProcess, stdin: WriteEnd, output: ReadEnd) -> None:
        self._keeper = keeper
        self._kept = kept
        self._stdin = stdin
        self._output = output
        self.pid = int(kept.started.result())
        self.write = stdin.write
        self.close_input = stdin.close
        self.read = output.read
        self.ended = kept.ended.done

    async def wait(self) -> int:
        """Raises WorkFailed(`box_died`) where it was not the program that ended."""
        code = await self._kept.wait()
        if not self._keeper.alive:
            msg = "the keeper of this worker's boxes was killed, and all boxes with it"
            raise WorkFailed("box_died", msg, retriable=True)
        return code

    async def end(self) -> None:
        try:
            await self._kept.end()
        finally:
            self._stdin.close()
            self._output.close()


async def start_program(
    keeper: Keeper,
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    cwd: str,
    limits: Mapping[str, int],
    confinement: Confinement | None = None,
) -> KeptProgram:
    """Raises WorkFailed: `box_died`, and `box_unavailable` where there is no room for its pipes."""
    theirs_in, ours_in, ours_out, theirs_out = _pipes()
    stdin, output = WriteEnd(ours_in), ReadEnd(ours_out)
    try:
        kept = await keeper.spawn(
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
            raise WorkFailed("box_died", str(error), retriable=True) from error
        raise
    finally:
        os.close(theirs_in)
        os.close(theirs_out)
    return KeptProgram(keeper, kept, stdin, output)


def no_room(error: OSError) -> WorkFailed:
    """What is said where the worker may open no more files."""
    msg = f"this worker has no room for one more box: {error}; each has two open files (ulimit -n)"
    return WorkFailed("box_unavailable", msg, retriable=True)


def _pipes() -> tuple[int, int, int, int]:
    """Two pipes, each its end to read from and its end to write to."""
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
