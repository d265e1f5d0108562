"""Every rule has a source and a test of its values."""

from pathlib import Path

import pytest

from rollcall.producers.curators.curators import CURATORS
from rollcall.trainer.rules.catalogue import KINDS
from tests.support.golden import claimed

ALL = {**KINDS, "curator": CURATORS}
ROOT = Path(__file__).parents[3]
RULES = sorted((kind, name) for kind, rules in ALL.items() for name in rules)
CLAIMED = claimed(ROOT / "tests")


@pytest.mark.parametrize(("kind", "name"), RULES)
def test_every_rule_names_its_source_and_has_a_golden_test(kind: str, name: str) -> None:
    rule = ALL[kind][name]

    assert rule.source, f"{kind} {name!r}: name paper and section in its Rule, or say `ours`"
    assert rule.function.__doc__, f"{kind} {name!r}: give its formula in the docstring"
    assert (kind, name) in CLAIMED, (
        f"{kind} {name!r} has no test of its values: put @golden({kind!r}, {name!r}) of "
        "tests.support.golden above one that compares with numbers from its source"
    )


def test_no_test_claims_an_unknown_rule() -> None:
    assert {each for each in CLAIMED if each[0] in ALL} <= set(RULES)
