"""Finding what a user meant: the nearest known name, and `module:function` references."""

import importlib
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from typing import Any

from schemas.errors import Refused


def unknown(kind: str, name: str, known: Iterable[str]) -> Refused:
    """The error for a name that nobody knows, naming the nearest known one."""
    names = sorted(known)
    near = get_close_matches(name, names, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(names)}"
    return Refused(f"unknown {kind} {name!r}; {hint}")


def load(kind: str, reference: str) -> Callable[..., Any]:
    """Import `module:function`; raises Refused naming what is missing."""
    module_name, colon, attribute = reference.partition(":")
    if not (module_name and colon and attribute):
        msg = f"{kind} {reference!r} is neither a shipped name nor module:function"
        raise Refused(msg)
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # a user's module may raise anything when it is imported
        msg = f"{kind} {reference!r}: module {module_name!r} cannot be imported: {error}"
        raise Refused(msg) from error
    try:
        found = getattr(module, attribute)
    except AttributeError as error:
        msg = f"{kind} {reference!r}: module {module_name!r} has no {attribute!r}"
        raise Refused(msg) from error
    if not callable(found):
        msg = f"{kind} {reference!r} is a {type(found).__name__}, not a function or class"
        raise Refused(msg)
    return found  # type: ignore[no-any-return]
