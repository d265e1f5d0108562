"""A plug-in is a function found by its name in the configuration: ours, or `module:function`."""

import difflib
from collections.abc import Mapping
from importlib import import_module
from typing import Any, TypeVar

from schemas.errors import Refused

P = TypeVar("P")


def plugin(key: str, name: str, known: Mapping[str, P]) -> P:
    """What the configuration means by `key: name`; refused with the nearest known name."""
    if name in known:
        return known[name]
    if ":" in name:
        found: P = _imported(key, name)
        return found
    nearest = difflib.get_close_matches(name, known, n=1, cutoff=0.0)
    msg = (
        f"{key} {name!r} is unknown; did you mean {''.join(nearest)!r}? "
        f"known are {', '.join(sorted(known))}, or a function of yours as module:function"
    )
    raise Refused(msg)


def _imported(key: str, name: str) -> Any:
    module, _, function = name.partition(":")
    try:
        found = getattr(import_module(module), function)
    except (ImportError, AttributeError, ValueError) as error:
        msg = f"{key} {name!r} cannot be imported: {error}; is it on the path of this process?"
        raise Refused(msg) from error
    if not callable(found):
        msg = f"{key} {name!r} is a {type(found).__name__}, not a function"
        raise Refused(msg)
    return found
