"""Whether what a configuration file says of a learner is of the kind that its field wants.

Bounds and names are looked at later, by what may compare numbers and look names up.
"""

from collections.abc import Mapping
from types import NoneType, UnionType
from typing import Any, get_args, get_origin, get_type_hints

from schemas.errors import Refused
from schemas.rules import Choice

MOST = 2**63 - 1
"""The largest whole number that a checkpoint's manifest can hold."""
WORDS = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a name",
    Choice: "a table with a name",
}


def require_types(owner: type, values: Mapping[str, Any], rules: Mapping[str, Any]) -> None:
    """Raise Refused for a value that is not what the field of a dataclass is annotated with.

    A field that is named as a kind of `rules` may be a choice too.
    """
    hints = get_type_hints(owner)
    for key, value in values.items():
        wanted = hints[key] | Choice if hints[key] is str and key in rules else hints[key]
        if not fits(value, wanted):
            msg = f"{key} is {_shown(value)}; give {words_of(wanted)}"
            raise Refused(msg)


def fits(value: object, wanted: Any) -> bool:
    """Whether a value is of an annotated type; whole numbers are numbers, truth values are none."""
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


def words_of(wanted: Any) -> str:
    """What to give, for people."""
    arguments = get_args(wanted)
    if get_origin(wanted) is tuple:
        if arguments[-1] is Ellipsis:
            return f'a list, such as ["NAME"], each {words_of(arguments[0])}'
        return f"a list of {len(arguments)} numbers"
    if isinstance(wanted, UnionType):
        return " or ".join(words_of(each) for each in arguments if each is not NoneType)
    return WORDS.get(wanted, "a table")


def _shown(value: object) -> str:
    """As it was written, as far as one line goes."""
    if isinstance(value, Choice):
        return f"a table with name = {value.name!r}"
    return repr(list(value) if isinstance(value, tuple) else value)[:200]
