"""A plug-in is a function found by its name in the configuration: ours, or `module:function`."""

from collections.abc import Mapping
from typing import Any, TypeVar, cast

from schemas import names

P = TypeVar("P")


def plugin(key: str, name: str, known: Mapping[str, P]) -> P:
    """What the configuration means by `key: name`; refused with the nearest known name.

    Raises Refused.
    """
    if name in known:
        return known[name]
    if ":" in name:
        return cast(P, names.load(key, name))
    raise names.unknown(key, name, cast("Mapping[str, Any]", known))
