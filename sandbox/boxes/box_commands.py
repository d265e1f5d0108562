"""Operations that every box does by programs inside it: commands, and tar streams in and out.

Since files are read and written inside the box, a planted link can only lead into the same box.
"""

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path

from rollcall.sandbox.boxes import tar_streams
from rollcall.sandbox.boxes.box import BoxProgram, CommandResult, Usage
from rollcall.sandbox.boxes.frame import CHUNK_BYTES, SIGNALLED, TIMED_OUT, HeadAndTail, answering
from rollcall.schemas.errors import FailureCode, WorkFailed

MOST_CHARS = 10_000
TAR_S = 120.0
"""Time limit of packing and of unpacking, in seconds."""
RUN = 'cd -- "$1" || exit 126; shift; exec "$@"'
# `kill -9 -1` kills all but the first process and this shell at once: nothing forks in between.
KILL_ALL = "kill -9 -1; set -- /proc/[0-9]*; [ $# -le 2 ]"
KILL_S, KILL_AGAIN_S = 10.0, 0.005
UNPACK = 'mkdir -p -- "$1" && exec tar -x -f - -C "$1" --no-same-owner --no-same-permissions'
PACK = 'exec 2>/dev/null; cd -- "$(dirname -- "$1")" && exec tar -c -f - -- "$(basename -- "$1")"'


class BoxCommands(ABC):
    """The part of `rollcall.sandbox.boxes.box.Box` that is built on `start` and `usage`."""

    shown: Mapping[bytes, bytes]
    workdir: str = ""
    episode_over: bool = False
    _waiting: BoxProgram | None = None
    """A shell that has answered and is not yet handed out."""

    @abstractmethod
    async def start(self, *argv: str, env: Mapping[str, str] | None = None) -> BoxProgram:
        """Implement `Box.start`."""

    @abstractmethod
    async def usage(self) -> Usage:
        """Implement `Box.usage`."""

    async def run(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        timeout_s: float = 30.0,
        most_chars: int = MOST_CHARS,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
    ) -> CommandResult:
        """Implement `Box.run`."""
        began = time.perf_counter()
        killed_before = (await self.usage()).oom_kills
        kept = HeadAndTail(most_chars - most_chars // 2, most_chars // 2, self.shown)
        program = await self.start("/bin/sh", "-c", RUN, "sh", cwd or ".", *argv, env=env)
        try:
            async with asyncio.timeout(timeout_s):
                code = await _fed(program, stdin, kept)
        except TimeoutError:
            code = TIMED_OUT
        finally:
            await program.end()
        output, elided = kept.text()
        return CommandResult(
            output,
            code,
            timed_out=code == TIMED_OUT,
            oom=code != 0 and (await self.usage()).oom_kills > killed_before,
            elided_chars=elided,
            ms=(time.perf_counter() - began) * 1000,
        )

    async def stand_by(self, within_s: float) -> None:
        """Implement `Box.stand_by`."""
        self._waiting = await answering(await self._begun(), within_s)

    async def shell(self, within_s: float) -> BoxProgram:
        """Implement `Box.shell`."""
        if self._waiting is None:
            return await answering(await self._begun(), within_s)
        return await self._begun()

    async def _begun(self) -> BoxProgram:
        """Take the waiting shell, or start a new one."""
        program, self._waiting = self._waiting, None
        return program or await self.start("/bin/sh")

    async def end_programs(self) -> None:
        """Implement `Box.end_programs`."""
        self.episode_over = True
        program, self._waiting = self._waiting, None
        if program:
            await program.end()
        await self._kill_all()

    async def _kill_all(self) -> None:
        """Kill until no other process is left: dead ones stay listed for some milliseconds."""
        give_up_at = time.monotonic() + KILL_S
        while True:
            ran = await self.run(("/bin/sh", "-c", KILL_ALL), timeout_s=KILL_S, cwd="/")
            if ran.exit_code == 0:
                return
            if time.monotonic() > give_up_at:
                msg = f"what runs in the box cannot be ended within {KILL_S:g} s"
                raise WorkFailed(FailureCode.BOX_SPOILT, msg, retriable=False)
            await asyncio.sleep(KILL_AGAIN_S)

    async def put(self, tar: bytes, directory: str = ".") -> None:
        """Implement `Box.put`."""
        await asyncio.to_thread(tar_streams.checked, tar)
        unpack = ("/bin/sh", "-c", UNPACK, "sh", directory)
        ran = await self.run(unpack, stdin=tar, timeout_s=TAR_S)
        if ran.exit_code:
            why = "it took too long" if ran.timed_out else ran.output.strip() or str(ran.exit_code)
            msg = f"a tar stream cannot be unpacked in {directory!r} of the box: {why}"
            raise tar_streams.refusal(msg)

    async def get(self, path: str, *, most_bytes: int) -> bytes:
        """Implement `Box.get`."""
        program = await self.start("/bin/sh", "-c", PACK, "sh", path)
        try:
            async with asyncio.timeout(TAR_S):
                tar = await _drained(program, most_bytes)
                code = await program.wait() if tar is not None else 0
        except TimeoutError as error:
            msg = f"{path!r} of the box cannot be packed within {TAR_S:g} s"
            raise tar_streams.refusal(msg) from error
        finally:
            await program.end()
        if tar is None:
            msg = f"{path!r} of the box is more than {most_bytes:,} bytes as a tar stream"
            raise tar_streams.refusal(msg)
        if code:
            msg = f"{path!r} is not in the box, or cannot be read whole (exit code {code})"
            raise tar_streams.refusal(msg)
        await asyncio.to_thread(tar_streams.checked, tar, most_bytes=most_bytes)
        return tar

    async def write(self, name: str, content: bytes) -> None:
        """Implement `Box.write`."""
        await self._put_own(tar_streams.of_files({name: content}), f"file {name!r}")

    async def copy_in(self, source: Path) -> None:
        """Implement `Box.copy_in`."""
        try:
            tar = await asyncio.to_thread(tar_streams.of_directory, source)
        except (OSError, RecursionError) as error:
            msg = f"{source} cannot be copied into the box: {str(error)[:500]}"
            raise WorkFailed(FailureCode.BAD_CONFIG, msg, retriable=False) from error
        await self._put_own(tar, str(source))

    async def _put_own(self, tar: bytes, what: str) -> None:
        """Unpack a stream that this process made. Raises WorkFailed(`bad_config`)."""
        try:
            await self.put(tar)
        except WorkFailed as error:
            if error.code != FailureCode.BAD_ARCHIVE:
                raise
            msg = f"{what} cannot be written into the box: {error}"
            raise WorkFailed(FailureCode.BAD_CONFIG, msg, retriable=False) from error


async def _fed(program: BoxProgram, stdin: bytes, kept: HeadAndTail) -> int:
    """Write and read concurrently until it has ended; return its exit code as a shell would."""
    writing = asyncio.create_task(_feed(program, stdin))
    try:
        while chunk := await program.read(CHUNK_BYTES):
            kept.add(chunk)
        code = await program.wait()
    finally:
        writing.cancel()
        await asyncio.gather(writing, return_exceptions=True)
    return code if code >= 0 else SIGNALLED - code


async def _feed(program: BoxProgram, stdin: bytes) -> None:
    await program.write(stdin)
    program.close_input()


async def _drained(program: BoxProgram, most_bytes: int) -> bytes | None:
    """Return its whole output; None as soon as that exceeds `most_bytes`."""
    program.close_input()
    chunks, size = [], 0
    while chunk := await program.read(CHUNK_BYTES):
        chunks.append(chunk)
        size += len(chunk)
        if size > most_bytes:
            return None
    return b"".join(chunks)
