"""Folders with a kernel lock that a process holds until it ends, however it ends.

A folder without a lock was left behind, and any process may remove it.
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
    """Lock a parent folder while folders in it are made and held, or listed."""
    descriptor = os.open(parent, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def hold(directory: Path) -> int:
    """Lock a folder until the returned descriptor is closed, also in processes that inherit it."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    fcntl.flock(descriptor, fcntl.LOCK_SH)
    return descriptor


class HeldFolder:
    """A new folder of this process; folders of killed processes in the same place are removed."""

    def __init__(self, parent: Path) -> None:
        with locked(parent):  # so that no other process removes this folder before it is held
            for left in parent.iterdir():
                remove_unless_held(left)
            self.directory = parent / secrets.token_hex(8)
            self.directory.mkdir(0o700)
            self._lock = hold(self.directory)

    def remove(self) -> None:
        """Remove it. May be called twice."""
        if self._lock >= 0:
            shutil.rmtree(self.directory, ignore_errors=True)
            os.close(self._lock)
            self._lock = -1


@contextmanager
def scratch_folder(name: str) -> Iterator[Path]:
    """Make a temporary folder, and remove it at the end.

    Folders of killed processes are removed first. Raises OSError if the parent of these folders
    belongs to another user.
    """
    above = Path(tempfile.gettempdir()) / f"rollcall-{name}-{os.getuid()}"
    above.mkdir(0o700, exist_ok=True)
    if above.is_symlink() or above.stat().st_uid != os.getuid():
        msg = f"{above} is another user's; remove it, or set TMPDIR"
        raise PermissionError(msg)
    folder = HeldFolder(above)
    try:
        yield folder.directory
    finally:
        folder.remove()


def remove_unless_held(directory: Path) -> None:
    """Remove a folder if no live process holds it."""
    try:
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:  # it is a file, or another process has just removed it
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(directory, ignore_errors=True)
    except BlockingIOError:
        return
    finally:
        os.close(descriptor)
