"""Folders that a process holds for as long as it lives, however it ends: by a lock of the kernel.

What is not held any more was left behind, and is anybody's to remove.
"""

import fcntl
import os
import shutil
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
