"""Where results may go: told at the door, before any work is done for them."""

from pathlib import Path

from schemas.errors import Refused


def refuse_no_folder(path: Path | None, option: str = "--json") -> None:
    """Raise Refused where a file could not be written for want of its folder."""
    if path is not None and not path.absolute().parent.is_dir():
        msg = f"{option} {path}: there is no directory {str(path.parent)!r}"
        raise Refused(msg)


def refuse_used(directory: Path, option: str) -> None:
    """Raise Refused where a directory that is to be filled is there and not empty, or a file."""
    if directory.is_symlink() or (directory.exists() and not directory.is_dir()):
        msg = f"{option} {directory} is there already and is no directory; choose another"
        raise Refused(msg)
    if directory.is_dir() and any(directory.iterdir()):
        msg = f"{option} {directory} is there already and not empty; choose another, or remove it"
        raise Refused(msg)
