"""Output files: the check of their folder before any work is done, and writing them."""

from pathlib import Path

from rollcall.schemas.atomic_files import write_atomically
from rollcall.schemas.errors import Refused


def refuse_no_folder(path: Path | None, option: str = "--json") -> None:
    """Raise Refused if a file cannot be written because its folder is missing."""
    if path is not None and not path.absolute().parent.is_dir():
        msg = f"{option} {path}: there is no directory {str(path.parent)!r}"
        raise Refused(msg)


def write_json(path: Path, value: object) -> None:
    """Write one object as indented JSON; the file is complete or absent.

    A device, a pipe or a link is written through, not replaced. Raises OSError.
    """
    import orjson

    data = orjson.dumps(value, option=orjson.OPT_INDENT_2)
    if path.is_symlink() or (path.exists() and not path.is_file()):
        path.write_bytes(data)
    else:
        write_atomically(path, data)
