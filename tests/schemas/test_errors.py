"""The error class decides the reaction, and the module's docstring lists every class."""

import inspect
import re

import pytest

from rollcall.schemas import errors
from rollcall.schemas.errors import (
    BadMagic,
    BatchFailed,
    LengthsDisagree,
    RollcallError,
    RolloutBroken,
    TooLarge,
    Unavailable,
    Unfit,
    WireError,
    WorkFailed,
)

CLASSES = [
    of
    for _, of in inspect.getmembers(errors, inspect.isclass)
    if of.__module__ == errors.__name__ and issubclass(of, Exception)
]


def test_every_own_error_is_in_one_class_tree() -> None:
    assert all(issubclass(of, RollcallError) for of in CLASSES)


def test_the_docstring_lists_every_error() -> None:
    drawn = set(re.findall(r"\w+", errors.__doc__ or ""))

    assert {of.__name__ for of in CLASSES} <= drawn


@pytest.mark.parametrize("of", CLASSES, ids=lambda of: of.__name__)
def test_every_error_belongs_to_exactly_one_branch(of: type) -> None:
    branches = (
        WireError, WorkFailed, RolloutBroken, BatchFailed, Unavailable, Unfit, errors.Refused,
    )  # fmt: skip

    assert sum(issubclass(of, branch) for branch in branches) == (of is not RollcallError)


def test_a_too_large_record_reports_its_size_and_is_not_retried() -> None:
    error = TooLarge("rl.rollout.events", 2_000_000, 1_048_588)

    assert (error.code, error.retriable) == ("too_large", False)
    assert "2,000,000 bytes for rl.rollout.events is above the limit of 1,048,588" in str(error)


def test_errors_about_bytes_show_the_bytes_they_found() -> None:
    assert "b'{\"a\"'" in str(BadMagic(b'{"a"'))
    assert str(LengthsDisagree("Sequence", token_ids=8, versions=4)) == (
        "packed arrays of Sequence do not fit each other: token_ids 8 bytes, versions 4 bytes"
    )
