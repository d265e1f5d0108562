"""Words of foreign code, made fit to be written down: where they are made, once.

What a program, an environment or a scorer says of itself may hold what UTF-8 cannot carry, be a
megabyte long, or raise when it is asked.
"""

import re
import sysconfig
from collections.abc import Callable

from rollcall.schemas.former_names import PACKAGE
from rollcall.schemas.interrupts import is_from_outside

REASON_CHARS = 4000
"""The kept length of a reason; it is part of every later record of its rollout."""
SHOWN_CHARS = 200
BEYOND_ASCII = re.compile("[\x7f-\U0010ffff]")
PLACE_CHARS = 80
PYTHON = sysconfig.get_path("stdlib")


def clean_text(text: object, most: int | None = None) -> str:
    """The text as it can be written: lone surrogates become `?`, and it is cut at `most`.

    What is no text although it should be is shown.
    """
    text = text if isinstance(text, str) else describe_value(text)
    text = text if most is None else text[:most]
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def printable(text: str) -> str:
    """A text without what a terminal obeys: control characters, marks of direction."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in "\n\t" else repr(c)[1:-1] for c in text)


def printable_json(text: str) -> str:
    """The same JSON, in which such characters are written by their numbers."""
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
    """A foreign object in words, of which there are at most so many characters."""
    try:
        return clean_text(show(value), most)
    except BaseException as error:  # its own words may raise anything
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
    """` (file.py:12)`, of the last call that stands in no library and in no module of ours.

    Empty where there is no such call. Only names of files are told: where they lie differs from
    one machine to the next.
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
