"""The worker's ends of pipes, read and written by the event loop without threads."""

import asyncio
import os
from collections.abc import Callable


class _End:
    """One end of a pipe, used by one task at a time."""

    def __init__(self, fd: int) -> None:
        os.set_blocking(fd, False)
        self._fd = fd
        self._open = True

    def close(self) -> None:
        """Close it. May be called twice."""
        if self._open:
            self._open = False
            os.close(self._fd)

    async def _ready(
        self,
        begin: Callable[..., None],
        stop: Callable[[int], bool],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        ready: asyncio.Future[None] = loop.create_future()
        begin(self._fd, _set, ready)
        try:
            await ready
        finally:
            stop(self._fd)


def _set(ready: "asyncio.Future[None]") -> None:
    if not ready.done():
        ready.set_result(None)


class ReadEnd(_End):
    """The read end of a pipe."""

    async def read(self, most_bytes: int) -> bytes:
        """Return bytes as soon as some arrive; empty when all writers have closed the pipe."""
        loop = asyncio.get_running_loop()
        while self._open:
            try:
                return os.read(self._fd, most_bytes)
            except BlockingIOError:
                await self._ready(loop.add_reader, loop.remove_reader, loop)
        return b""


class WriteEnd(_End):
    """The write end of a pipe."""

    async def write(self, content: bytes) -> None:
        """Write everything, or stop silently when the reader is gone."""
        loop = asyncio.get_running_loop()
        left = memoryview(content)
        while left and self._open:
            try:
                left = left[os.write(self._fd, left) :]
            except BlockingIOError:
                await self._ready(loop.add_writer, loop.remove_writer, loop)
            except BrokenPipeError:
                return
