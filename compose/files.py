"""Output files: the check of their folder before any work is done, and writing them. State files:
read only if complete and of the right form, else refused in one line, since a full disk, a power
cut or an editor may have left an empty, incomplete or different file.
"""

from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from rollcall.schemas.atomic_files import write_atomically
from rollcall.schemas.errors import Refused

T = TypeVar("T")

MOST_BYTES = 16 << 20
"""The most bytes of a state file; our own are far smaller."""


def read_state(path: Path, form: type[T] | Any) -> T | None:
    """Read a JSON file as a value of this form; None if there is no file.

    Raises Refused, naming file and fault.
    """
    try:
        with path.open("rb") as file:
            data = file.read(MOST_BYTES + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        msg = f"{path} cannot be read: {error.strerror}"
        raise Refused(msg) from error
    try:
        if len(data) > MOST_BYTES:
            msg = f"it has more than {MOST_BYTES:,} bytes"
            raise ValueError(msg)
        found: T = TypeAdapter(form).validate_json(data)
    except (ValueError, RecursionError) as error:
        msg = f"{path} is not as it was written ({_fault(error)}); bring it back, or remove it"
        raise Refused(msg) from error
    return found


def _fault(error: Exception) -> str:
    """Describe an error in a few words."""
    if not isinstance(error, ValidationError):
        return str(error).partition("\n")[0][:200]
    first = error.errors(include_url=False, include_input=False)[0]
    place = ".".join(str(part) for part in first["loc"])
    return f"{place}: {first['msg']}" if place else str(first["msg"])


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
