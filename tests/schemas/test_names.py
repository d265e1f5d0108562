"""A misspelt name gets the nearest known one, a bad reference the part that is missing."""

import collections
from pathlib import Path

import pytest

from rollcall.schemas.errors import Refused
from rollcall.schemas.names import load, unknown_name


def test_a_misspelt_name_gets_the_nearest_suggestion() -> None:
    assert str(unknown_name("agent", "reakt", ["react", "single_turn"])) == (
        "unknown agent 'reakt'; did you mean 'react'?"
    )


def test_an_unrecognisable_name_gets_the_list_of_known_names() -> None:
    error = unknown_name("agent", "xyz", {"single_turn", "react"})

    assert isinstance(error, Refused)
    assert str(error) == "unknown agent 'xyz'; known are react, single_turn"


def test_a_reference_is_imported() -> None:
    assert load("agent", "collections:OrderedDict") is collections.OrderedDict


@pytest.mark.parametrize("reference", ["", "react", "collections:", ":OrderedDict", ":"])
def test_an_invalid_reference_is_refused_with_the_expected_form(reference: str) -> None:
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
def test_an_unresolvable_reference_names_the_part_that_fails(reference: str, says: str) -> None:
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
def test_a_module_that_fails_to_import_is_reported(
    module: str, text: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / f"rollcall_test_{module}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)

    with pytest.raises(Refused, match=says):
        load("agent", f"rollcall_test_{module}:f")


@pytest.mark.parametrize(
    ("reference", "says"),
    [
        ("trainer:score", "module 'trainer' has no 'score'"),
        ("sandbox.mine:score", "No module named 'sandbox.mine'"),
        ("rollcall:score", "module 'rollcall' has no 'score'"),
    ],
)
def test_a_reference_to_a_missing_name_of_ours_is_refused(reference: str, says: str) -> None:
    with pytest.raises(Refused, match=says):
        load("scorer", reference)
