"""Folders that hold what people asked, what models said, and keys: for their owner alone."""

import os
import stat
from pathlib import Path

PRIVATE = 0o700
OTHERS = stat.S_IRWXG | stat.S_IRWXO


def make_private(directory: Path) -> Path:
    """Make a folder and its missing parents, into which nobody else can look, whatever the umask.

    What was there is left as it is. Raises OSError.
    """
    missing = [path for path in (directory, *directory.parents) if not path.exists()]
    for path in reversed(missing):
        try:
            path.mkdir(PRIVATE)
        except FileExistsError:
            continue  # somebody else was quicker, and makes it private
        path.chmod(PRIVATE)
    directory.mkdir(exist_ok=True)  # which raises where it is no folder
    return directory


def tighten(directory: Path) -> bool:
    """Let nobody but the owner into a folder that was made wider; whether it was.

    Raises OSError for one of another user.
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
