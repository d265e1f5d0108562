"""A rule is found by name, its options are checked, and errors take one line."""

from dataclasses import dataclass

import pytest

from rollcall.schemas.errors import Refused
from rollcall.schemas.rules import Need, NoOptions, Rule, RuleChoice, choose, require, table


@dataclass(frozen=True, slots=True)
class Bound:
    """Options of `shrink`."""

    factor: float = 0.5
    times: int = 1

    def __post_init__(self) -> None:
        require("factor", self.factor, 0 < self.factor < 1, "give a number in (0, 1)")


def shrink(number: float, options: Bound) -> float:
    return number * options.factor**options.times


def halved(number: float) -> float:
    return number / 2


SHRINK = Rule("shrink", "size", "ours", shrink, Bound, frozenset({"group"}))
KEEP = Rule("keep", "size", "ours", lambda number, options: number)
SIZES = table(SHRINK, KEEP)


def test_a_name_alone_selects_the_rules_defaults() -> None:
    assert choose("size", "shrink", SIZES)(8.0) == 4.0
    assert choose("size", "keep", SIZES).options == NoOptions()


def test_a_table_sets_options_and_integers_count_as_floats() -> None:
    assert choose("size", {"name": "shrink", "times": 3}, SIZES)(8.0) == 1.0
    with pytest.raises(Refused, match=r"size 'shrink': factor is 1; give a number in \(0, 1\)"):
        choose("size", {"name": "shrink", "factor": 1}, SIZES)


def test_a_user_function_has_no_options_and_a_user_rule_has() -> None:
    plain = choose("size", f"{__name__}:halved", SIZES)
    theirs = choose("size", {"name": f"{__name__}:SHRINK", "factor": 0.25}, SIZES)

    assert plain(8.0) == 4.0
    assert plain.needs(Need.GROUP), "of what we do not know we assume that it compares"
    assert theirs(8.0) == 2.0
    assert theirs.needs(Need.GROUP), "a need declared as a plain string counts"


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("shrnk", "unknown size 'shrnk'; did you mean 'shrink'"),
        ({"name": "shrink", "facto": 1}, "option of size 'shrink' 'facto'; did you mean 'factor'"),
        ({"name": "keep", "factor": 1}, "size 'keep' has no options, found 'factor'"),
        ({"name": "shrink", "times": 1.5}, "size 'shrink': times is 1.5; give a finite int"),
        ({"name": "shrink", "times": True}, "times is True"),
        ({"name": "shrink", "factor": float("nan")}, "factor is nan; give a finite float"),
        ({"name": "shrink", "factor": "0.5"}, "factor is '0.5'"),
        ({"factor": 0.5}, "give a name, or a table with `name`"),
        (7, "size is 7; give a name"),
        ({"name": f"{__name__}:halved", "factor": 1}, "has no options, found 'factor'"),
    ],
)
def test_an_invalid_choice_is_refused_in_one_line(value: object, message: str) -> None:
    with pytest.raises(Refused, match=message) as refused:
        choose("size", value, SIZES)
    assert "\n" not in str(refused.value)


def test_a_rule_of_another_kind_is_refused() -> None:
    with pytest.raises(Refused, match="is a rule of kind 'size'; give one of kind 'shape'"):
        choose("shape", f"{__name__}:SHRINK", {})


def test_a_choice_is_written_back_unchanged() -> None:
    for value in ("shrink", {"name": "shrink", "factor": 0.25}):
        assert RuleChoice.of("size", value).plain() == value
    assert hash(RuleChoice.of("size", {"name": "shrink", "factor": [1, [2]]}))
