"""The types of a learner's values, each with the remedy for a value that cannot work.

Numbers are kept as written: a digest tells the 1 of a recipe from its 1.0.
"""

from collections.abc import Callable, Mapping
from math import isfinite
from typing import Annotated, Any

from pydantic import PlainValidator, Strict, ValidationInfo
from pydantic_core import PydanticCustomError

from rollcall.schemas.rules import RuleChoice

MOST = 2**63 - 1
"""The largest integer that a checkpoint's manifest can hold."""


def unfit(remedy: str) -> PydanticCustomError:
    """Return the error for a value, with the remedy as its message."""
    return PydanticCustomError("unfit", "{remedy}", {"remedy": remedy})


def fits(holds: Callable[[Any], bool], remedy: str) -> PlainValidator:
    """Return the validator of a value for which `holds`."""

    def check(value: object) -> object:
        if not holds(value):
            raise unfit(remedy)
        return value

    return PlainValidator(check)


def number(holds: Callable[[Any], bool], remedy: str, *kinds: type) -> PlainValidator:
    """Return the validator of a finite number of these types (int and float) for which `holds`."""

    def check(value: Any) -> object:
        if type(value) not in (kinds or (int, float)) or (
            isinstance(value, int) and abs(value) > MOST
        ):
            raise unfit("give a whole number" if kinds else "give a number")
        if not (isfinite(value) and holds(value)):
            raise unfit(remedy)
        return value

    return PlainValidator(check)


def _rule(value: object, info: ValidationInfo) -> str | RuleChoice:
    if isinstance(value, str | RuleChoice):
        return value
    if isinstance(value, Mapping):
        return RuleChoice.of(info.field_name or "rule", value)
    remedy = "give a name or a table with a name"
    raise unfit(remedy)


RULE = PlainValidator(_rule)
RuleName = Annotated[str | RuleChoice, RULE]
"""A rule by name or as `module:function`, or a table with `name` and the rule's options."""
Switch = Annotated[bool, Strict()]
Text = Annotated[str, Strict()]
Whole = Annotated[int, number(lambda _: True, "", int)]
Natural = Annotated[int, number(lambda x: x >= 0, "give 0 or more", int)]
Count = Annotated[int, number(lambda x: x >= 1, "give a number of at least 1", int)]
Positive = Annotated[float, number(lambda x: x > 0, "give a number above 0")]
NotNegative = Annotated[float, number(lambda x: x >= 0, "give 0 or more")]
