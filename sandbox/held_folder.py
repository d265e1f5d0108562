"""Folders that a process holds for as long as it lives, however it ends: by a lock of the kernel.

What is not held any more was left behind, and is anybody's to remove.
"""

import fcntl
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def locked(parent: Path) -> Iterator[None]:
    """While folders are made in it and held, or looked through: nobody does either meanwhile."""
    descriptor = os.open(parent, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def hold(directory: Path) -> int:
    """Hold a folder until this descriptor is closed, here and in whoever inherits it."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    fcntl.flock(descriptor, fcntl.LOCK_SH)
    return descriptor


@contextmanager
def scratch_folder(name: str) -> Iterator[Path]:
    """Make a folder below the one for temporary files, and remove it in the end.

    What killed ones have left is removed first. Raises OSError where another user has made the
    folder of all of them.
    """
    above = Path(tempfile.gettempdir()) / f"rollcall-{name}-{os.getuid()}"
    above.mkdir(0o700, exist_ok=True)
    if above.is_symlink() or above.stat().st_uid != os.getuid():
        msg = f"{above} is another user's; remove it, or set TMPDIR"
        raise PermissionError(msg)
    with locked(above):
        for left in above.iterdir():
            remove_unless_held(left)
        folder = above / secrets.token_hex(8)
        folder.mkdir(0o700)
        held = hold(folder)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(held)


def remove_unless_held(directory: Path) -> None:
    """Remove what a process has left that did not live to do so itself."""
    try:
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:  # a file of somebody's, or another process has just removed it
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(directory, ignore_errors=True)
    except BlockingIOError:
        return
    finally:
        os.close(descriptor)
