"""The verdict on a patch from a run of its tests, and the checks that the run is valid. Pure.

A fail-to-pass test must pass or fail as expected; a pass-to-pass test may also be skipped; both if
the reference's tests allow it (`marks`). A patch is resolved if all of them are met and named by
the run. A run that contradicts itself is invalid, and scores 0: an exit code that no failure
explains, a failure that the exit code hides, or counts that differ from the named tests.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

PASSED, FAILED, ERROR = "PASSED", "FAILED", "ERROR"
SKIPPED, XFAIL, XPASS = "SKIPPED", "XFAIL", "XPASS"
OUTCOMES = (ERROR, FAILED, SKIPPED, XPASS, XFAIL, PASSED)
"""All outcomes, the worst first: of a test that is named twice the worse counts."""
MENDED = frozenset({PASSED, XFAIL})
KEPT = frozenset({PASSED, XFAIL, SKIPPED})
BAD = frozenset({FAILED, ERROR})
NAMED = 3
"""The number of tests that a reason names."""


@dataclass(frozen=True, slots=True)
class TestLog:
    """The results of a run of tests."""

    __test__ = False
    outcomes: Mapping[str, str] = field(default_factory=dict)
    """The outcome of each test, one of OUTCOMES."""
    exit_code: int = 0
    counts: Mapping[str, int] | None = None
    """The counts by outcome in the runner's own summary; None if it has none."""
    raised: Mapping[str, str] = field(default_factory=dict)
    """The file that raised it, for each test that was skipped or failed as expected."""
    wrong: str = ""
    """The reason why the run is invalid, if the parser found one."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The verdict on a patch."""

    code: str
    """`resolved`; `failed` if not all tests pass; else the reason why the tests do not count."""
    reason: str
    passed: float = 0.0
    """The fraction of the tests to pass that passed."""
    failing: tuple[str, ...] = ()
    """The names of tests that do not pass, or that fail when run alone."""

    @property
    def resolved(self) -> bool:
        return self.code == "resolved"

    def __str__(self) -> str:
        return f"{self.code}: {self.reason}"


Allows = Callable[[str, str, str], bool]
"""A function of test, outcome and raising file: True if the outcome counts."""


def verdict(
    log: TestLog, fail_to_pass: Sequence[str], pass_to_pass: Sequence[str], allows: Allows
) -> Verdict:
    """Judge a run by the tests to pass; without fail-to-pass tests the exit code decides."""
    wrong = log.wrong or contradiction(log)
    if wrong:
        return Verdict("invalid", wrong)
    if not fail_to_pass:
        return by_exit_code(log.exit_code)
    outcomes = {
        test: outcome if allows(test, outcome, log.raised.get(test, "")) else FAILED
        for test in (*fail_to_pass, *pass_to_pass)
        if (outcome := log.outcomes.get(test))
    }
    unmended = [each for each in fail_to_pass if outcomes.get(each) not in MENDED]
    broken = [each for each in pass_to_pass if outcomes.get(each) not in KEPT]
    tests = len(fail_to_pass) + len(pass_to_pass)
    passed = (tests - len(unmended) - len(broken)) / tests
    if not unmended and not broken:
        return Verdict("resolved", f"all {tests:,} tests pass", passed)
    reasons = [
        _said("fail-to-pass", unmended, len(fail_to_pass), outcomes),
        _said("pass-to-pass", broken, len(pass_to_pass), outcomes),
    ]
    return Verdict("failed", "; ".join(filter(None, reasons)), passed, (*unmended, *broken))


def by_exit_code(exit_code: int) -> Verdict:
    """Return the verdict for a command that names no tests."""
    if exit_code == 0:
        return Verdict("resolved", "exit code 0", 1.0)
    return Verdict("failed", f"exit code {exit_code}")


def contradiction(log: TestLog) -> str:
    """Return how a run contradicts itself; empty if it is consistent."""
    found = Counter(log.outcomes.values())
    bad = found[FAILED] + found[ERROR]
    if log.outcomes and log.exit_code and not bad + found[XPASS]:  # 1 from unittest
        return f"exit code {log.exit_code}, but no test failed or erred"
    if bad and not log.exit_code:
        return f"exit code 0, but {bad:,} tests failed or erred"
    for outcome in OUTCOMES:
        if log.counts is not None and log.counts.get(outcome, 0) != found[outcome]:
            counted = log.counts.get(outcome, 0)
            return f"its summary counts {counted:,} {outcome}, and it names {found[outcome]:,}"
    return ""


def worse(first: str | None, second: str) -> str:
    """Return the worse of two outcomes of one test."""
    return second if first is None else min(first, second, key=OUTCOMES.index)


def _said(what: str, wrong: Sequence[str], of: int, outcomes: Mapping[str, str]) -> str:
    if not wrong:
        return ""
    named = ", ".join(f"{each} {outcomes.get(each, 'is missing')}" for each in wrong[:NAMED])
    more = f" and {len(wrong) - NAMED:,} more" if len(wrong) > NAMED else ""
    return f"{len(wrong):,} of {of:,} {what} do not pass: {named}{more}"
