"""Texts of user code, made valid and short at the place where they arise.

The text of an exception or value of a program, an environment or a scorer may not be valid UTF-8,
may be a megabyte long, and may raise when it is asked for.
"""

import re
import sysconfig
from collections.abc import Callable

from rollcall.schemas.former_names import PACKAGE
from rollcall.schemas.interrupts import is_from_outside

REASON_CHARS = 4000
"""The maximal length of a reason, which is part of every later record of its rollout."""
SHOWN_CHARS = 200
BEYOND_ASCII = re.compile("[\x7f-\U0010ffff]")
PLACE_CHARS = 80
PYTHON = sysconfig.get_path("stdlib")


def clean_text(text: object, most: int | None = None) -> str:
    """Return the text as valid UTF-8, cut at `most`; lone surrogates become `?`.

    A value that is not a text is described.
    """
    text = text if isinstance(text, str) else describe_value(text)
    text = text if most is None else text[:most]
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def printable(text: str) -> str:
    """Return a text with control characters and direction marks escaped, for a terminal."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in "\n\t" else repr(c)[1:-1] for c in text)


def printable_json(text: str) -> str:
    """Return equivalent JSON in which such characters are escaped by number."""
    return text if text.isascii() and "\x7f" not in text else BEYOND_ASCII.sub(_number, text)


def _number(found: re.Match[str]) -> str:
    character = found[0]
    if character.isprintable():
        return character
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[n : n + 2].hex()}" for n in range(0, len(units), 2))


def describe_value(
    value: object, show: Callable[[object], str] = repr, most: int = SHOWN_CHARS
) -> str:
    """Describe an untrusted object in at most `most` characters."""
    try:
        return clean_text(show(value), most)
    except BaseException as error:  # its `__repr__` may raise anything
        if is_from_outside(error):
            raise
        return f"a {type(value).__name__}"


def describe_exception(error: BaseException, most: int = REASON_CHARS) -> str:
    """Describe an exception of user code: its type, message and place."""
    place = code_location(error)
    text = clean_text(
        f"{type(error).__name__}: {describe_value(error, str, most)}", most - len(place)
    )
    return f"{text}{place}"


def code_location(error: BaseException) -> str:
    """Return ` (file.py:12)` for the last call outside libraries and our own modules.

    Return an empty text if there is none. Folders are left out, as they differ between machines.
    """
    place, trace = "", error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        module = str(trace.tb_frame.f_globals.get("__name__", ""))
        if not (_is_library(code.co_filename) or module.partition(".")[0] == PACKAGE):
            name = code.co_filename.replace("\\", "/").rpartition("/")[2]
            place = f" ({name[-PLACE_CHARS:]}:{trace.tb_lineno})"
        trace = trace.tb_next
    return clean_text(place)


def _is_library(path: str) -> bool:
    return "site-packages" in path or path.startswith((PYTHON, "<"))
