"""What a run of tests says of a patch, and when it is not believed. Pure.

Fail-to-pass counts what passed or failed as expected, pass-to-pass also what was skipped, where the
reference's tests say so (`marks`). Resolved is all of both, each of them named by the run. A run
that contradicts itself is invalid, and earns nothing: an exit code that no failure explains, or a
failure that the exit code hides, or other counts than there are tests.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

PASSED, FAILED, ERROR = "PASSED", "FAILED", "ERROR"
SKIPPED, XFAIL, XPASS = "SKIPPED", "XFAIL", "XPASS"
OUTCOMES = (ERROR, FAILED, SKIPPED, XPASS, XFAIL, PASSED)
"""The worst first: of a test that is named twice the worse counts."""
MENDED = frozenset({PASSED, XFAIL})
KEPT = frozenset({PASSED, XFAIL, SKIPPED})
BAD = frozenset({FAILED, ERROR})
NAMED = 3
"""So many tests a reason names."""


@dataclass(frozen=True, slots=True)
class TestLog:
    """What a run of tests says."""

    __test__ = False
    outcomes: Mapping[str, str] = field(default_factory=dict)
    """By test, one of OUTCOMES."""
    exit_code: int = 0
    counts: Mapping[str, int] | None = None
    """How many of each outcome its own summary counts; None where it has none."""
    raised: Mapping[str, str] = field(default_factory=dict)
    """By test that was skipped or failed as expected, the file whose code asked for that."""
    wrong: str = ""
    """Why it is not to be believed, as far as whoever read it could tell."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of a patch."""

    code: str
    """`resolved`; `failed`, whose tests do not all pass; else why there was nothing to judge."""
    reason: str
    passed: float = 0.0
    """The fraction of all tests to pass that passed."""
    failing: tuple[str, ...] = ()
    """The tests that do not pass, or not alone, where they have names."""

    @property
    def resolved(self) -> bool:
        return self.code == "resolved"

    def __str__(self) -> str:
        return f"{self.code}: {self.reason}"


Allows = Callable[[str, str, str], bool]
"""Whether an outcome of a test counts that a file raised."""


def verdict(
    log: TestLog, fail_to_pass: Sequence[str], pass_to_pass: Sequence[str], allows: Allows
) -> Verdict:
    """Judge a run by what was to pass; without any name the exit code alone decides."""
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
    """For a command that names no tests."""
    if exit_code == 0:
        return Verdict("resolved", "exit code 0", 1.0)
    return Verdict("failed", f"exit code {exit_code}")


def contradiction(log: TestLog) -> str:
    """What a run says against itself; empty where it is consistent."""
    found = Counter(log.outcomes.values())
    bad = found[FAILED] + found[ERROR]
    if log.outcomes and log.exit_code and not bad + found[XPASS]:  # unittest fails of those
        return f"exit code {log.exit_code}, but no test failed or erred"
    if bad and not log.exit_code:
        return f"exit code 0, but {bad:,} tests failed or erred"
    for outcome in OUTCOMES:
        if log.counts is not None and log.counts.get(outcome, 0) != found[outcome]:
            counted = log.counts.get(outcome, 0)
            return f"its summary counts {counted:,} {outcome}, and it names {found[outcome]:,}"
    return ""


def worse(first: str | None, second: str) -> str:
    """The worse of two outcomes of one test."""
    return second if first is None else min(first, second, key=OUTCOMES.index)


def _said(what: str, wrong: Sequence[str], of: int, outcomes: Mapping[str, str]) -> str:
    if not wrong:
        return ""
    named = ", ".join(f"{each} {outcomes.get(each, 'is missing')}" for each in wrong[:NAMED])
    more = f" and {len(wrong) - NAMED:,} more" if len(wrong) > NAMED else ""
    return f"{len(wrong):,} of {of:,} {what} do not pass: {named}{more}"
