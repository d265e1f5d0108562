"""Files and folders that are there whole or not at all.

What is written goes to another name beside its own and gets its own when all has gone well. A crash
leaves at worst a `.tmp` that nobody refers to. What is durable outlives a power cut: it is on the
disk before it has its name, and its name is before the call returns.
"""

import os
import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from rollcall.schemas.errors import Refused
from rollcall.schemas.private_folders import make_private


def require_unused(directory: Path, option: str) -> None:
    """Raise Refused where a directory that is to be filled is there and not empty, or a file."""
    if directory.is_symlink() or (directory.exists() and not directory.is_dir()):
        msg = f"{option} {directory} is there already and is no directory; choose another"
        raise Refused(msg)
    if directory.is_dir() and any(directory.iterdir()):
        msg = f"{option} {directory} is there already and not empty; choose another, or remove it"
        raise Refused(msg)


def require_free_space(directory: Path, needed_bytes: int) -> None:
    """Raise Refused where the disk has no room for a directory that need not be there yet."""
    there = next(path for path in (directory, *directory.absolute().parents) if path.is_dir())
    free_bytes = shutil.disk_usage(there).free
    if free_bytes < needed_bytes:
        msg = (
            f"{there} has {free_bytes / 1e6:,.0f} MB free, {needed_bytes / 1e6:,.0f} MB are "
            "needed; make room there, or choose another directory"
        )
        raise Refused(msg)


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """A hidden name to write a file or a folder under, which then gets the name `path`.

    A file of that name is replaced, a folder only where it is empty; raises OSError otherwise. When
    the body raises, nothing is left behind.
    """
    hidden = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        yield hidden
        hidden.replace(path)
    finally:
        if hidden.is_dir():
            shutil.rmtree(hidden, ignore_errors=True)
        else:
            hidden.unlink(missing_ok=True)


def write_atomically(path: Path, data: bytes | str) -> None:
    """Replace a file so that readers see what it held or what it holds now, never a part."""
    make_private(path.parent)
    with atomic_path(path) as hidden:
        hidden.write_bytes(data.encode() if isinstance(data, str) else data)


def put_durably(files: Any, path: str, data: bytes) -> None:
    """Write a file of any fsspec file system; on a local disk it is durable when this returns.

    Raises OSError, or what else the file system raises.
    """
    folder, _, name = path.rpartition("/")
    stream_durably(files, folder, [data], lambda: name)


def stream_durably(
    files: Any, folder: str, pieces: Iterable[bytes | memoryview], name: Callable[[], str]
) -> str:
    """The same for a file that comes in pieces; it gets the name that it is told in the end.

    Returns its path. What was written of it goes where it cannot be finished.
    """
    from fsspec.implementations.local import (
        LocalFileSystem,
    )  # slow: most who write files need none of it

    temporary, local = f"{folder}/{secrets.token_hex(8)}.tmp", isinstance(files, LocalFileSystem)
    files.makedirs(folder, exist_ok=True)
    try:
        with files.open(temporary, "wb") as stream:
            for piece in pieces:
                stream.write(piece)
        if local:
            sync_to_disk(temporary)
        path = f"{folder}/{name()}"
        files.mv(temporary, path)
    except BaseException:
        with suppress(Exception):  # it is away, or never was: what came first is what is raised
            files.rm(temporary)
        raise
    if local:
        sync_to_disk(folder)
    return path


def appear_durably(hidden: Path, path: Path) -> None:
    """Give a file that is written its name; it is durable when this returns."""
    sync_to_disk(hidden)
    hidden.replace(path)
    sync_to_disk(path.parent)


def sync_to_disk(path: str | Path) -> None:
    """Bring a local file, or the entries of a local directory, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
