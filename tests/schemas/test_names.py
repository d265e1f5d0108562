"""A misspelt name is answered with the nearest known one, a bad reference with what is missing."""

import collections
from pathlib import Path

import pytest

from schemas.errors import Refused
from schemas.names import load, unknown


def test_a_misspelt_name_is_answered_with_the_nearest_known_one() -> None:
    assert str(unknown("agent", "reakt", ["react", "single_turn"])) == (
        "unknown agent 'reakt'; did you mean 'react'?"
    )


def test_a_name_that_is_near_to_none_is_answered_with_all() -> None:
    error = unknown("agent", "xyz", {"single_turn", "react"})

    assert isinstance(error, Refused)
    assert str(error) == "unknown agent 'xyz'; known are react, single_turn"


def test_a_reference_is_imported() -> None:
    assert load("agent", "collections:OrderedDict") is collections.OrderedDict


@pytest.mark.parametrize("reference", ["", "react", "collections:", ":OrderedDict", ":"])
def test_what_is_no_reference_is_told_what_one_looks_like(reference: str) -> None:
    with pytest.raises(Refused, match="module:function"):
        load("agent", reference)


@pytest.mark.parametrize(
    ("reference", "says"),
    [
        ("collections:Ordered", "module 'collections' has no 'Ordered'"),
        ("no_such_module:f", "'no_such_module' cannot be imported: No module named"),
        (".relative:f", "'.relative' cannot be imported"),
        ("string:digits", "is a str, not a function or class"),
    ],
)
def test_a_reference_that_leads_nowhere_says_where_it_ends(reference: str, says: str) -> None:
    with pytest.raises(Refused, match=f"agent '{reference}'.*{says}"):
        load("agent", reference)


@pytest.mark.parametrize(
    ("module", "text", "says"),
    [
        ("divides", "1 / 0", "cannot be imported: division by zero"),
        ("misses", "import math\nmath.no_such_thing", "cannot be imported: module 'math' has no"),
        ("misspelt", "def f(:", "cannot be imported: invalid syntax"),
    ],
)
def test_a_module_that_breaks_when_it_is_imported_is_blamed_itself(
    module: str, text: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / f"rollcall_test_{module}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)

    with pytest.raises(Refused, match=says):
        load("agent", f"rollcall_test_{module}:f")


@pytest.mark.parametrize("reference", ["trainer:score", "sandbox.mine:score", "rollcall:score"])
def test_a_reference_into_one_of_our_packages_says_that_the_name_is_taken(reference: str) -> None:
    with pytest.raises(Refused, match="another name"):
        load("scorer", reference)
