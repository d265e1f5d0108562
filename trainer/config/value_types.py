"""Type checks of a learner's values from a configuration file.

Bounds and names are checked later, by code that may then compare numbers and look up names.
"""

from collections.abc import Mapping
from types import NoneType, UnionType
from typing import Any, get_args, get_origin, get_type_hints

from rollcall.schemas.errors import Refused
from rollcall.schemas.rules import RuleChoice

MOST = 2**63 - 1
"""The largest integer that a checkpoint's manifest can hold."""
DESCRIPTIONS = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a name",
    RuleChoice: "a table with a name",
}


def require_types(owner: type, values: Mapping[str, Any], rules: Mapping[str, Any]) -> None:
    """Raise Refused for a value that does not match the annotation of its dataclass field.

    A field whose name is a kind of `rules` may be a Choice too.
    """
    hints = get_type_hints(owner)
    for key, value in values.items():
        wanted = hints[key] | RuleChoice if hints[key] is str and key in rules else hints[key]
        if not fits(value, wanted):
            msg = f"{key} is {_shown(value)}; give {described(wanted)}"
            raise Refused(msg)


def fits(value: object, wanted: Any) -> bool:
    """Return True if a value has an annotated type; an int is a float, a bool is not an int."""
    arguments = get_args(wanted)
    if get_origin(wanted) is tuple:
        if not isinstance(value, tuple):
            return False
        kinds = arguments[:1] * len(value) if arguments[-1] is Ellipsis else arguments
        return len(kinds) == len(value) and all(map(fits, value, kinds))
    if isinstance(wanted, UnionType):
        return any(fits(value, each) for each in arguments)
    if wanted is float:
        return isinstance(value, float) or fits(value, int)
    if wanted is int:
        return type(value) is int and abs(value) <= MOST
    return isinstance(value, wanted)


def described(wanted: Any) -> str:
    """Describe an annotated type for an error message."""
    arguments = get_args(wanted)
    if get_origin(wanted) is tuple:
        if arguments[-1] is Ellipsis:
            return f'a list, such as ["NAME"], each {described(arguments[0])}'
        return f"a list of {len(arguments)} numbers"
    if isinstance(wanted, UnionType):
        return " or ".join(described(each) for each in arguments if each is not NoneType)
    return DESCRIPTIONS.get(wanted, "a table")


def _shown(value: object) -> str:
    """Return a value as written, shortened to one line."""
    if isinstance(value, RuleChoice):
        return f"a table with name = {value.name!r}"
    return repr(list(value) if isinstance(value, tuple) else value)[:200]
