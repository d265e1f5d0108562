"""Words of foreign code, made fit to be written down: where they are made, once.

What a program, an environment or a scorer says of itself may hold what UTF-8 cannot carry, be a
megabyte long, or raise when it is asked.
"""

from collections.abc import Callable

from schemas.interrupts import is_from_outside

REASON_CHARS = 4000
"""Of a reason so much is kept; it stands in every later record of its rollout."""
SHOWN_CHARS = 200


def plain(text: object, most: int | None = None) -> str:
    """The text as it can be written: lone surrogates become `?`, and it is cut at `most`.

    What is no text although it should be is shown.
    """
    text = text if isinstance(text, str) else shown(text)
    text = text if most is None else text[:most]
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def shown(value: object, show: Callable[[object], str] = repr, most: int = SHOWN_CHARS) -> str:
    """A foreign object in words, of which there are at most so many characters."""
    try:
        return plain(show(value), most)
    except BaseException as error:  # its own words may raise anything
        if is_from_outside(error):
            raise
        return f"a {type(value).__name__}"


def raised(error: BaseException, most: int = REASON_CHARS) -> str:
    """What foreign code raised: its kind and what it says."""
    return plain(f"{type(error).__name__}: {shown(error, str, most)}", most)
