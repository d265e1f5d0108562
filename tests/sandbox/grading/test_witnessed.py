"""The report of a supervised run is accepted only if all of it is consistent."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollcall.sandbox.grading.witnessed import NoRunner, seen_in, witnessed

TOKEN = "t"
CONTROLS = {"c1": "PASSED", "c2": "FAILED"}


def phases(test: str, *outcomes: str, expected: bool = False) -> list[list[object]]:
    """Setup, call and teardown; a setup that does not pass has no call."""
    names = ("setup", "call", "teardown") if len(outcomes) == 3 else ("setup", "teardown")
    return [
        [TOKEN, "test", test, name, outcome, expected and name == "call", ""]
        for name, outcome in zip(names, outcomes, strict=True)
    ]


def controlled(test: str, *outcomes: str) -> list[list[object]]:
    """The same for a control test."""
    return [[TOKEN, "control", test, *line[3:5]] for line in phases(test, *outcomes)]


OK = ("passed", "passed", "passed")
BAD = ("passed", "failed", "passed")
RUN: list[list[object]] = [
    [TOKEN, "collected", ["a", "s", "e", "x", "b"]],
    *phases("a", *OK),
    *phases("s", "skipped", "passed"),
    *phases("e", "failed", "passed"),
    *phases("x", "passed", "skipped", "passed", expected=True),
    *phases("b", *BAD),
    *controlled("c1", *OK),
    *controlled("c2", *BAD),
    [TOKEN, "end", 1, 2, []],
]


def seen(lines: list[list[Any]], code: int = 1) -> dict[str, object]:
    return {"code": code, "reports": [json.dumps(line) for line in lines]}


def wrong(lines: list[list[Any]], code: int = 1) -> str:
    return witnessed(seen(lines, code), TOKEN, CONTROLS).wrong


def test_consistent_run_is_accepted_without_its_control_tests() -> None:
    log = witnessed(seen(RUN), TOKEN, CONTROLS)

    assert (log.wrong, log.exit_code) == ("", 1)
    told = {"a": "PASSED", "s": "SKIPPED", "e": "ERROR", "x": "XFAIL", "b": "FAILED"}
    assert log.outcomes == told


def test_run_without_tests_is_accepted() -> None:
    nothing = [[TOKEN, "collected", []], *RUN[-7:-1], [TOKEN, "end", 5, 0, []]]

    assert witnessed(seen(nothing, 5), TOKEN, CONTROLS).wrong == ""
    assert "does not fit" in wrong([*RUN[:-1], [TOKEN, "end", 5, 2, []]], 5)


def test_failed_subtest_fails_its_test_but_skipped_subtest_does_not_skip_it() -> None:
    lines = [
        *RUN[:-1],
        [TOKEN, "test", "a", "subtest", "failed", False, ""],
        [TOKEN, "test", "x", "subtest", "skipped", False, ""],
        [TOKEN, "end", 1, 3, []],
    ]

    log = witnessed(seen(lines), TOKEN, CONTROLS)
    assert (log.wrong, log.outcomes["a"], log.outcomes["x"]) == ("", "FAILED", "XFAIL")


def test_test_collected_twice_may_be_reported_twice() -> None:
    twice = [*RUN[:-1], *phases("b", *BAD), [TOKEN, "end", 1, 3, []]]
    twice[0] = [TOKEN, "collected", ["a", "s", "e", "x", "b", "b"]]

    log = witnessed(seen(twice), TOKEN, CONTROLS)
    assert (log.wrong, log.outcomes["a"]) == ("", "PASSED")


def test_unreadable_test_module_is_an_error() -> None:
    lines = [[TOKEN, "unread", "tests/test_b.py"], *RUN[:-1], [TOKEN, "end", 1, 3, []]]

    assert witnessed(seen(lines), TOKEN, CONTROLS).outcomes["tests/test_b.py"] == "ERROR"


@pytest.mark.parametrize(
    ("lines", "code", "says"),
    [
        (RUN[:-1], 0, "did not come to its end: its process ended with exit code 0"),
        (RUN[:-1], -9, "signal 9"),
        (RUN, 0, "pytest ended with 1, its process with exit code 0"),
        ([*RUN[:-1], [TOKEN, "end", 4, 2, []]], 4, "pytest ended with 4"),
        ([*RUN[:-1], [TOKEN, "end", 1, 3, []]], 1, "counts 3 failures, and reports 2"),
        ([*RUN[:-1], [TOKEN, "end", 1, 2, ["x.y"]]], 1, "was changed while it ran: x.y"),
        ([*RUN, RUN[1]], 1, "after the end"),
        ([["?", *RUN[1][1:]], *RUN], 1, "forged"),
        ([[TOKEN, "tested", "a"], *RUN], 1, "makes no sense"),
        ([*RUN[:1], *RUN[4:]], 1, "5 tests were collected, 4 reported"),
        ([*RUN[:-1], *phases("more", *OK), RUN[-1]], 1, "5 tests were collected, 6 reported"),
        ([*RUN[:3], *RUN[4:]], 1, "a was not run to its end"),
    ],
)  # fmt: skip
def test_inconsistent_run_is_rejected(lines: list[list[Any]], code: int, says: str) -> None:
    assert says in wrong(lines, code)


def test_unexpected_control_test_outcome_invalidates_the_run() -> None:
    end = RUN[-1]

    assert "1 control tests" in wrong([*RUN[:-4], *controlled("c2", *OK), end])
    assert "1 control tests" in wrong([*RUN[:-4], end])
    assert "1 control tests" in wrong([*RUN[:-1], *controlled("more", *OK), end])


def test_missing_pytest_raises_no_runner() -> None:
    with pytest.raises(NoRunner, match="cannot run pytest: no module"):
        witnessed(seen([[TOKEN, "missing", "no module"]]), TOKEN, CONTROLS)
    assert "no sense" in wrong([RUN[0], [TOKEN, "missing", "later"], *RUN[1:]])


@given(st.integers(0, len(RUN)), st.text() | st.just('["t"]') | st.just('["t", 3]'))
def test_foreign_report_line_invalidates_the_run(place: int, text: str) -> None:
    given_ = seen(RUN)
    reports = list(given_["reports"])  # type: ignore[call-overload]
    reports.insert(place, text)

    assert witnessed({**given_, "reports": reports}, TOKEN, CONTROLS).wrong


@given(st.text(), st.text())
def test_only_the_line_with_the_nonce_is_parsed(before: str, after: str) -> None:
    nonce = "8d1f" * 8

    assert seen_in(f'{before}\n{nonce}{{"code": 3}}\n{after}', nonce) == {"code": 3}
    assert seen_in(before + after, nonce) is None
    assert seen_in(f"{nonce}[1", nonce) is None
