"""The evaluation of a supervised run of pytest, with checks that its reports agree. Pure."""

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rollcall.sandbox.grading.verdict import (
    BAD,
    ERROR,
    FAILED,
    MENDED,
    PASSED,
    SKIPPED,
    XFAIL,
    XPASS,
    TestLog,
    Verdict,
    worse,
)

RAN = (0, 1, 5)
"""pytest's exit codes after a complete run: no failure, some failures, no tests."""


class NoRunner(Exception):
    """Raised if the tests cannot be started: the image has no runner, or the patch removed it."""


@dataclass(slots=True)
class WitnessReports:
    """The reports of a witness, parsed line by line."""

    token: str
    collected: list[str] = field(default_factory=list)
    phases: dict[str, list[tuple[str, str]]] = field(default_factory=lambda: defaultdict(list))
    """The phases of each test and their outcomes; `subtest` occurs once per subtest."""
    raised: dict[str, str] = field(default_factory=dict)
    """The file that raised it, for each test that was skipped or failed as expected."""
    controls: dict[str, list[tuple[str, str]]] = field(default_factory=lambda: defaultdict(list))
    """The phases of each control test and their outcomes."""
    unread: list[str] = field(default_factory=list)
    failures: int = 0
    end: list[Any] | None = None
    missing: str = ""
    wrong: str = ""

    def take(self, line: str) -> None:
        words = _words(line)
        if words is None or words[0] != self.token:
            self.wrong = self.wrong or "a line of its reports was forged"
        elif self.end is not None:
            self.wrong = self.wrong or "something was reported after the end"
        else:
            self._take(*words[1:])

    def _take(self, kind: str, *words: Any) -> None:
        match kind, words:
            case "missing", [str() as why] if not self.collected and not self.phases:
                self.missing = why
            case "collected", [list() as tests] if not self.collected:
                self.collected = [str(test) for test in tests]
            case "unread", [str() as place]:
                self.unread.append(place)
                self.failures += 1
            case "test", [str(), str(), str(), bool(), str()]:
                self._take_phase(*words)
            case "control", [str() as test, str() as phase, str() as outcome]:
                self.controls[test].append((phase, outcome))
            case "end", [int(), int(), list()]:
                self.end = list(words)
            case _:
                self.wrong = self.wrong or f"a report of {kind!r} that makes no sense"

    def _take_phase(self, test: str, phase: str, outcome: str, expected: bool, where: str) -> None:
        self.phases[test].append((phase, f"x{outcome}" if expected else outcome))
        self.failures += outcome == "failed" and not expected
        if where and (outcome == "skipped" or expected):
            self.raised[test] = where


def witnessed(seen: Mapping[str, Any], token: str, expected: Mapping[str, str]) -> TestLog:
    """Return the log of a supervised run; `expected` are the outcomes of the control tests.

    Raises NoRunner if there is no pytest.
    """
    account = _account(seen["reports"], token)
    outcomes = {test: outcome_of(phases) for test, phases in account.phases.items()}
    wrong = _wrong(account, int(seen["code"]), outcomes, expected)
    if wrong:
        return TestLog(wrong=wrong)
    outcomes |= dict.fromkeys(account.unread, ERROR)
    failed = any(each in BAD for each in outcomes.values())
    return TestLog(outcomes, exit_code=int(failed), raised=account.raised)


def witnessed_alone(seen: Mapping[str, Any], tokens: Mapping[str, str]) -> Verdict:
    """Judge tests that passed together by their runs alone.

    `tokens` has the token of each test's process. Raises NoRunner.
    """
    lines: dict[str, list[str]] = {token: [] for token in tokens.values()}
    for line in seen["reports"]:
        words = _words(line)
        if words is None or words[0] not in lines:
            return Verdict("invalid", "a line of its reports was forged")
        lines[str(words[0])].append(line)
    failing: dict[str, str] = {}
    for test, token in tokens.items():
        account = _account(lines[token], token)
        outcomes = {each: outcome_of(phases) for each, phases in account.phases.items()}
        code = account.end[0] if account.end else int(seen["code"])
        wrong = _wrong(account, code, outcomes, {})
        if not wrong and outcomes.get(test) not in MENDED:
            wrong = f"it {'is ' + outcomes[test] if test in outcomes else 'was not run'}"
        if wrong:
            failing[test] = f"{test} passes beside others, and alone {wrong}"
    if not failing:
        return Verdict("resolved", f"{len(tokens):,} tests pass alone", 1.0)
    return Verdict("invalid", next(iter(failing.values())), failing=tuple(failing))


def _account(lines: Iterable[str], token: str) -> WitnessReports:
    """Parse a witness's lines. Raises NoRunner."""
    account = WitnessReports(token)
    for line in lines:
        account.take(line)
    if account.missing:
        msg = f"the box's interpreter cannot run pytest: {account.missing}"
        raise NoRunner(msg)
    return account


def outcome_of(phases: Iterable[tuple[str, str]]) -> str:
    """Return the outcome of one test from its phases."""
    outcome = PASSED
    for phase, said in phases:
        outcome = worse(outcome, _phase_outcome(phase, said))
    return outcome


def _phase_outcome(phase: str, said: str) -> str:
    if phase == "subtest":  # a skipped subtest does not skip its test
        return FAILED if said == "failed" else PASSED
    if said == "failed":
        return FAILED if phase == "call" else ERROR
    return {"skipped": SKIPPED, "xskipped": XFAIL, "xpassed": XPASS, "xfailed": FAILED}.get(
        said, PASSED
    )


def _wrong(
    account: WitnessReports, code: int, outcomes: Mapping[str, str], expected: Mapping[str, str]
) -> str:
    """Return how the reports contradict each other; empty if they agree."""
    if account.wrong:
        return account.wrong
    if account.end is None:
        return f"pytest did not come to its end: its process ended with {_ended(code)}"
    said, failures, changed = account.end
    if changed:
        return f"pytest was changed while it ran: {', '.join(map(str, changed))}"
    if said != code or code not in RAN:
        return f"pytest ended with {said}, its process with {_ended(code)}"
    if failures != account.failures:
        return f"pytest counts {failures} failures, and reports {account.failures}"
    odd = _odd(expected, account.controls)
    if odd:
        return f"{odd} control tests did not come out as they must: reports are forged"
    collected = set(account.collected)  # pytest 7 runs a file twice if its folder is named too
    if collected != outcomes.keys():
        return f"{len(collected)} tests were collected, {len(outcomes)} reported"
    cut = [test for test, phases in account.phases.items() if not _whole(phases)]
    if cut:
        return f"{cut[0]} was not run to its end"
    bad = any(each in BAD for each in outcomes.values()) or bool(account.unread)
    fits = bad == (code == 1) and (code != 5 or not outcomes)
    return "" if fits else f"exit code {code} does not fit the outcomes"


def _odd(expected: Mapping[str, str], controls: Mapping[str, Iterable[tuple[str, str]]]) -> int:
    found = {test: outcome_of(phases) for test, phases in controls.items()}
    return sum(found.get(test) != expected.get(test) for test in found.keys() | expected.keys())


def _whole(phases: Iterable[tuple[str, str]]) -> bool:
    said = dict(phases)
    begun = said.get("setup") == "passed"
    return {"setup", "teardown"} <= said.keys() and begun == ("call" in said)


def _ended(code: int) -> str:
    return f"exit code {code}" if code >= 0 else f"signal {-code}"


def _words(line: str) -> list[Any] | None:
    """Parse a report: a token, a kind and the rest; None for any other line."""
    try:
        words = json.loads(line)
    except (ValueError, RecursionError):
        return None
    told = (
        isinstance(words, list)
        and len(words) > 1
        and all(isinstance(each, str) for each in words[:2])
    )
    return words if told else None


def seen_in(output: str, nonce: str) -> Mapping[str, Any] | None:
    """Return the supervisor's report from all that was printed; None if there is none."""
    for line in _lines_with(output.splitlines(), nonce):
        try:
            seen = json.loads(line)
        except ValueError:
            return None
        return seen if isinstance(seen, dict) else None
    return None


def _lines_with(lines: Iterable[str], nonce: str) -> Iterable[str]:
    return (line.removeprefix(nonce) for line in lines if line.startswith(nonce))
