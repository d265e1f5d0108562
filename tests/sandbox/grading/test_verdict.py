"""Rules of verdicts, as properties."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollcall.sandbox.grading.verdict import (
    BAD,
    KEPT,
    MENDED,
    OUTCOMES,
    TestLog,
    Verdict,
    contradiction,
    verdict,
    worse,
)

NAMES = st.sampled_from("abcdefgh")
RUNS = st.dictionaries(NAMES, st.sampled_from(OUTCOMES))


def judged_by(log: TestLog, fail_to_pass: list[str], pass_to_pass: list[str]) -> Verdict:
    """The verdict if the reference's tests allow every outcome."""
    return verdict(log, fail_to_pass, pass_to_pass, lambda *_: True)


def log_of(outcomes: dict[str, str]) -> TestLog:
    """A run with an exit code that fits its outcomes."""
    return TestLog(outcomes, int(any(each in BAD for each in outcomes.values())))


@given(RUNS, st.sets(NAMES, min_size=1), st.sets(NAMES))
def test_resolved_requires_all_fail_to_pass_and_pass_to_pass_tests(
    outcomes: dict[str, str], mend: set[str], keep: set[str]
) -> None:
    keep -= mend

    judged = judged_by(log_of(outcomes), sorted(mend), sorted(keep))

    good = [outcomes.get(each) in MENDED for each in mend]
    good += [outcomes.get(each) in KEPT for each in keep]
    assert judged.resolved == all(good)
    assert judged.passed == pytest.approx(sum(good) / len(good))
    assert (judged.passed == 1.0) == judged.resolved


@given(RUNS, st.sets(NAMES, min_size=1))
def test_missing_test_never_resolves(outcomes: dict[str, str], mend: set[str]) -> None:
    judged = judged_by(log_of(outcomes), [*sorted(mend), "never run"], [])

    assert not judged.resolved


@given(RUNS, st.integers(-9, 255))
def test_exit_code_that_contradicts_the_outcomes_is_invalid(
    outcomes: dict[str, str], exit_code: int
) -> None:
    found = Counter(outcomes.values())
    bad = found["FAILED"] + found["ERROR"]

    wrong = contradiction(TestLog(outcomes, exit_code))

    if exit_code == 0:
        assert bool(wrong) == bool(bad)
    elif outcomes and not bad and not found["XPASS"]:
        assert "no test failed" in wrong
    if wrong:
        assert judged_by(TestLog(outcomes, exit_code), ["a"], []).code == "invalid"


@given(RUNS, st.sampled_from(OUTCOMES), st.integers(1, 5))
def test_summary_counts_must_match_the_outcomes(
    outcomes: dict[str, str], outcome: str, more: int
) -> None:
    counts = Counter(outcomes.values())
    log = log_of(outcomes)

    assert contradiction(TestLog(outcomes, log.exit_code, counts)) == ""
    counts[outcome] += more
    assert contradiction(TestLog(outcomes, log.exit_code, counts))


def test_skipped_test_satisfies_pass_to_pass_but_not_fail_to_pass() -> None:
    log = log_of({"a": "SKIPPED", "b": "PASSED"})

    assert judged_by(log, ["b"], ["a"]).resolved
    assert judged_by(log, ["a"], ["b"]).reason == "1 of 1 fail-to-pass do not pass: a SKIPPED"


def test_verdict_reason_names_some_tests_and_counts_the_rest() -> None:
    reason = judged_by(log_of({"a": "FAILED"}), list("abcde"), ["k"]).reason

    assert reason == (
        "5 of 5 fail-to-pass do not pass: a FAILED, b is missing, c is missing and 2 more; "
        "1 of 1 pass-to-pass do not pass: k is missing"
    )


def test_exit_code_decides_if_no_tests_are_named() -> None:
    assert judged_by(TestLog(exit_code=0), [], []).resolved
    assert judged_by(TestLog(exit_code=3), [], []).reason == "exit code 3"


@given(st.sampled_from(OUTCOMES), st.sampled_from(OUTCOMES))
def test_worse_outcome_is_symmetric_and_one_of_its_arguments(first: str, second: str) -> None:
    assert worse(first, second) == worse(second, first)
    assert worse(first, second) in (first, second)
    assert worse(None, first) == first
