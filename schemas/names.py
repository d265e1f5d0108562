"""Names that users write: suggestions for unknown ones, and `module:function` references."""

import importlib
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from typing import Any

from rollcall.schemas.errors import Refused
from rollcall.schemas.former_names import accept_former_names
from rollcall.schemas.interrupts import is_from_outside
from rollcall.schemas.untrusted_text import code_location, describe_value

MOST = 24
"""The number of known names that an error lists if none is similar."""


def unknown_name(kind: str, name: str, known: Iterable[str]) -> Refused:
    """Return the error for an unknown name; it suggests the most similar known name."""
    return Refused(f"unknown {kind} {name!r}; {hint(name, known)}")


def hint(name: str, known: Iterable[str]) -> str:
    """Return a suggestion: the most similar known name, or else a list of known ones."""
    names = sorted(known)
    near = nearest(name, names)
    if near:
        return f"did you mean {near!r}?"
    return f"known are {', '.join(names[:MOST])}{', ...' if len(names) > MOST else ''}"


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the most similar known name; None if none is similar."""
    return next(iter(get_close_matches(name, list(known), n=1)), None)


def load(kind: str, reference: str) -> Callable[..., Any]:
    """Import `module:function`; raises Refused naming what is missing."""
    module_name, colon, attribute = reference.partition(":")
    if not (module_name and colon and attribute):
        msg = f"{kind} {reference!r} is neither a shipped name nor module:function"
        raise Refused(msg)
    accept_former_names()
    try:
        module = importlib.import_module(module_name)
    except BaseException as error:  # a user's module may do anything when imported
        if is_from_outside(error):
            raise
        said = describe_value(error, str, 1000) + code_location(error)
        msg = f"{kind} {reference!r}: module {module_name!r} cannot be imported: {said}"
        raise Refused(msg) from error
    try:
        found = getattr(module, attribute)
    except AttributeError as error:
        callables = [key for key, value in vars(module).items() if callable(value)]
        near = hint(attribute, callables)
        msg = f"{kind} {reference!r}: module {module_name!r} has no {attribute!r}; {near}"
        raise Refused(msg) from error
    if not callable(found):
        msg = f"{kind} {reference!r} is a {type(found).__name__}, not a function or class"
        raise Refused(msg)
    return found  # type: ignore[no-any-return]
