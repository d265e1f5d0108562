"""Atomic and durable writing of files and folders.

Content is written under a temporary name in the same folder and renamed when it is complete. A
crash leaves at worst an unused `.tmp` file. A durable write also survives a power cut: the content
is on the disk before the rename, and the rename is on the disk before the call returns.
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
    """Raise Refused if a directory to be filled exists and is not empty, or is a file."""
    if directory.is_symlink() or (directory.exists() and not directory.is_dir()):
        msg = f"{option} {directory} is there already and is no directory; choose another"
        raise Refused(msg)
    if directory.is_dir() and any(directory.iterdir()):
        msg = f"{option} {directory} is there already and not empty; choose another, or remove it"
        raise Refused(msg)


def require_free_space(directory: Path, needed_bytes: int) -> None:
    """Raise Refused if the disk has no room for a directory, which may not exist yet."""
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
    """Yield a hidden path to write a file or folder to, and rename it to `path` at the end.

    An existing file is replaced; an existing folder only if it is empty, otherwise OSError is
    raised. If the body raises, nothing is left behind.
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
    """Replace a file so that readers see its old or its new content, never a part."""
    make_private(path.parent)
    with atomic_path(path) as hidden:
        hidden.write_bytes(data.encode() if isinstance(data, str) else data)


def put_durably(files: Any, path: str, data: bytes) -> None:
    """Write a file of any fsspec file system; on a local disk it is durable on return.

    Raises OSError, or another error of the file system.
    """
    folder, _, name = path.rpartition("/")
    stream_durably(files, folder, [data], lambda: name)


def stream_durably(
    files: Any, folder: str, pieces: Iterable[bytes | memoryview], name: Callable[[], str]
) -> str:
    """Write a file from pieces, durably on a local disk, and return its path.

    `name` is called after the last piece, so that the name may depend on the content. If an error
    occurs, the incomplete file is removed.
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
        with suppress(Exception):  # the first error is raised, not one of the removal
            files.rm(temporary)
        raise
    if local:
        sync_to_disk(folder)
    return path


def appear_durably(hidden: Path, path: Path) -> None:
    """Rename a complete file to its final path; the rename is durable on return."""
    sync_to_disk(hidden)
    hidden.replace(path)
    sync_to_disk(path.parent)


def sync_to_disk(path: str | Path) -> None:
    """Flush a local file, or the entries of a local directory, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
