"""Large files that nobody reads soon, written past the page cache.

Bytes on their way through the cache cost more of a core than their sha256: 3.3 s for a gigabyte
where this takes 0.25 (measured on a virtual machine, ext4), and they push out what others read.
Where a file system takes no direct writes, and for the end of a file, which fills no block, it is
written as any other.
"""

import fcntl
import mmap
import os
from collections.abc import Iterable, Iterator
from errno import EINVAL
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

BUFFER_BYTES = 1 << 20
"""A multiple of every block size, and little enough to be in a core's cache still."""
DIRECT = getattr(os, "O_DIRECT", 0)
"""Linux's; without it nothing is direct."""


def write_uncached(path: Path, pieces: Iterable[bytes | memoryview]) -> None:
    """Write a file that is not there yet; durable it is after `atomic_files.sync_to_disk`.

    Raises OSError, and leaves what was written.
    """
    buffer = memoryview(mmap.mmap(-1, BUFFER_BYTES))  # begins a page, as direct writes have to
    descriptor = _new(path)
    try:
        for held in _filled(np.frombuffer(buffer, np.uint8), pieces):
            if held < BUFFER_BYTES:
                _go_through_cache(descriptor)
            _write(descriptor, buffer[:held])
    finally:
        os.close(descriptor)


def _new(path: Path) -> int:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0)
    try:
        return os.open(path, flags | DIRECT, 0o666)
    except OSError as error:
        if error.errno != EINVAL:
            raise
    path.unlink(missing_ok=True)  # some file systems make it before they refuse
    return os.open(path, flags, 0o666)


def _filled(buffer: NDArray[np.uint8], pieces: Iterable[bytes | memoryview]) -> Iterator[int]:
    """Fill the buffer; yield the number of bytes in it whenever it is full, and at the end.

    Numpy lets other threads run while it copies; a slice of a memoryview does not.
    """
    held = 0
    for piece in pieces:
        rest = np.frombuffer(piece, np.uint8) if len(piece) else buffer[:0]
        while len(rest):
            taken = min(len(rest), len(buffer) - held)
            np.copyto(buffer[held : held + taken], rest[:taken])
            held, rest = held + taken, rest[taken:]
            if held == len(buffer):
                yield held
                held = 0
    if held:
        yield held


def _write(descriptor: int, data: memoryview) -> None:
    while data:
        try:
            written = os.write(descriptor, data)
        except OSError as error:
            if error.errno != EINVAL or not _go_through_cache(descriptor):
                raise
            continue
        data = data[written:]


def _go_through_cache(descriptor: int) -> bool:
    """Have the rest written as any file is; whether it was not so far."""
    flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
    fcntl.fcntl(descriptor, fcntl.F_SETFL, flags & ~DIRECT)
    return bool(flags & DIRECT)
