"""Folders with prompts, answers and keys, which only their owner may read."""

import os
import stat
from pathlib import Path

PRIVATE = 0o700
OTHERS = stat.S_IRWXG | stat.S_IRWXO


def make_private(directory: Path) -> Path:
    """Create a folder and its missing parents, with access for their owner alone.

    Existing folders are not changed. Raises OSError.
    """
    missing = [path for path in (directory, *directory.parents) if not path.exists()]
    for path in reversed(missing):
        try:
            path.mkdir(PRIVATE)
        except FileExistsError:
            continue  # another process was quicker, and makes it private
        path.chmod(PRIVATE)
    directory.mkdir(exist_ok=True)  # raises if it is not a folder
    return directory


def tighten(directory: Path) -> bool:
    """Remove other users' access to a folder; return True if they had any.

    Raises OSError for a folder of another user.
    """
    try:
        about = directory.stat()
    except FileNotFoundError:
        return False
    if not stat.S_ISDIR(about.st_mode) or not about.st_mode & OTHERS:
        return False
    directory.chmod(stat.S_IMODE(about.st_mode) & ~OTHERS)
    return True


def is_open(directory: Path) -> bool:
    """Return True if users other than the owner can read it."""
    return os.path.isdir(directory) and bool(directory.stat().st_mode & OTHERS)
