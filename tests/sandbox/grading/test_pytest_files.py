"""The comparison of test files knows what pytest itself puts into test classes."""

import types
from typing import Any
from unittest import TestCase

import _pytest.fixtures
import pytest

from rollcall.sandbox.grading.pytest_files import is_runners


def function_in(names: dict[str, Any]) -> types.FunctionType:
    return types.FunctionType((lambda self: None).__code__, names)


@pytest.mark.parametrize(
    ("name", "names", "hides"),
    [
        ("_UnitTestCase__pytest_class_setup", vars(_pytest.fixtures), False),
        ("_UnitTestCase__pytest_class_setup", {"__name__": "tiny.sums"}, True),
        ("assertEqual", vars(_pytest.fixtures), True),
        ("assertEqual", {"__name__": "tiny.sums"}, True),
        ("test_adds", {"__name__": "tiny.sums"}, False),
    ],
)
def test_methods_that_hide_those_of_the_runner_are_found(
    monkeypatch: pytest.MonkeyPatch, name: str, names: dict[str, Any], hides: bool
) -> None:
    if name.startswith("_UnitTestCase"):  # older pytest collects TestCase itself too
        monkeypatch.setattr(TestCase, name, function_in(vars(_pytest.fixtures)), raising=False)

    made = type("SumsTest", (TestCase,), {name: function_in(names)})

    assert is_runners(made, name) == hides
