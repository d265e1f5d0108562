"""Large files that are not read soon, written past the page cache.

Writing through the cache costs more CPU than the file's sha256 (3.3 s for a gigabyte, against
0.25 s for direct writes; measured on a virtual machine, ext4), and evicts other files from the
cache. Direct writes need whole blocks: the end of a file, and a file system without them, are
written through the cache.
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
"""A multiple of every block size, and small enough for a core's cache."""
DIRECT = getattr(os, "O_DIRECT", 0)
"""Linux has this flag; elsewhere all writes go through the cache."""


def write_uncached(path: Path, pieces: Iterable[bytes | memoryview]) -> None:
    """Write a new file; `atomic_files.sync_to_disk` makes it durable.

    Raises OSError, and leaves the incomplete file.
    """
    buffer = memoryview(mmap.mmap(-1, BUFFER_BYTES))  # page-aligned, as direct writes require
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
    path.unlink(missing_ok=True)  # some file systems create it before they refuse
    return os.open(path, flags, 0o666)


def _filled(buffer: NDArray[np.uint8], pieces: Iterable[bytes | memoryview]) -> Iterator[int]:
    """Fill the buffer; yield the number of bytes in it whenever it is full, and at the end.

    Numpy releases the GIL while it copies; assigning to a slice of a memoryview does not.
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
    """Write the rest through the cache; return True if writes were direct until now."""
    flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
    fcntl.fcntl(descriptor, fcntl.F_SETFL, flags & ~DIRECT)
    return bool(flags & DIRECT)
