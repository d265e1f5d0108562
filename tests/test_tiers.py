"""The two tiers of the tests: together `make test` and `make test-all` run every test."""

import re
from itertools import chain, combinations
from types import SimpleNamespace
from typing import Any

import pytest
from _pytest.mark.expression import Expression
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.command_line import ROOT
from tests.support.tiers import FULL, QUICK, SHARE, cases, examples, selected

MAKEFILE = (ROOT / "Makefile").read_text()
ELSEWHERE = {"agents", "index"}
"""Marks of tests that `make agents` and `make tasks` run."""
MARKS = ("thorough", "hypothesis", "broker", "vllm", *sorted(ELSEWHERE))
SETS = list(chain.from_iterable(combinations(MARKS, size) for size in range(len(MARKS) + 1)))


def runs(tier: str, marks: tuple[str, ...]) -> bool:
    """Whether a tier of the Makefile runs a test with these marks."""
    (expression,) = re.findall(rf'^{tier} := .*-m "(.*)"$', MAKEFILE, re.MULTILINE)
    return Expression.compile(expression).evaluate(lambda name, **_: name in marks)


@pytest.mark.parametrize("marks", SETS, ids="-".join)
def test_every_test_runs_in_a_tier_or_in_a_target_of_its_own(marks: tuple[str, ...]) -> None:
    tiers = {tier for tier in ("QUICK", "REST") if runs(tier, marks)}

    if ELSEWHERE & set(marks):
        assert tiers == set()
    elif "thorough" in marks:
        assert tiers == {"REST"}
    elif "hypothesis" in marks:
        assert tiers == {"QUICK", "REST"}
    else:
        assert tiers == {"QUICK"}


def test_ci_runs_both_tiers() -> None:
    lines = (ROOT / ".ci" / "run").read_text().splitlines()

    assert {line.split("make ")[1] for line in lines if "make test" in line} == {"test", "test-all"}


def marked(param: Any) -> bool:
    return any(mark.name == "thorough" for mark in param.marks)


def test_the_first_or_the_named_cases_are_quick() -> None:
    counted = cases(("a", "b", "c"), 2)
    named = cases({"a": 1, "b": 2}, {"b"})
    several = cases([(1, "x"), (2, "y")])

    assert [(param.values, marked(param)) for param in counted] == [
        (("a",), False), (("b",), False), (("c",), True),
    ]  # fmt: skip
    assert [(param.values, marked(param)) for param in named] == [(("a",), True), (("b",), False)]
    assert [(param.values, marked(param)) for param in several] == [
        ((1, "x"), False), ((2, "y"), True),
    ]  # fmt: skip


def test_a_fixture_finds_the_parameters_of_the_selected_tests() -> None:
    def item(path: str, **params: object) -> SimpleNamespace:
        return SimpleNamespace(path=path, callspec=SimpleNamespace(params=params))

    items = [item("here", name="a"), item("here", other=1), item("elsewhere", name="b")]
    items.append(SimpleNamespace(path="here"))
    request: Any = SimpleNamespace(path="here", session=SimpleNamespace(items=items))

    assert selected(request, "name") == ["a"]


def test_the_quick_profile_has_fewer_examples() -> None:
    before = settings.get_current_profile_name()
    counted = []
    try:
        for profile in (FULL, QUICK):
            settings.load_profile(profile)
            counted.append((settings.default.max_examples, examples(150), examples(8)))
    finally:
        settings.load_profile(before)

    assert counted == [(100, 150, 8), (100 // SHARE, 150 // SHARE, 4)]


def test_a_property_without_settings_follows_the_profile() -> None:
    seen = []

    @given(st.integers())
    def collects(number: int) -> None:
        seen.append(number)

    collects()

    assert 0 < len(seen) <= settings.default.max_examples
