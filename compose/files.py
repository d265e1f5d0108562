"""Where results may go, told at the door before any work is done for them; and writing them."""

from pathlib import Path

from schemas.errors import Refused
from schemas.whole_files import write_whole


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


def write_json(path: Path, value: object) -> None:
    """Write one object as JSON, indented; the file is whole or not there.

    A device, a pipe or a link is written through, not replaced. Raises OSError.
    """
    import orjson

    data = orjson.dumps(value, option=orjson.OPT_INDENT_2)
    if path.is_symlink() or (path.exists() and not path.is_file()):
        path.write_bytes(data)
    else:
        write_whole(path, data)
