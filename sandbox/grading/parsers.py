"""Parsers of test runners' output, which return the outcome of each test. Pure; a table by name.

A parser takes the text and returns a TestLog without an exit code. If a runner prints counts, they
are included, so that they can be compared with the named tests. Text without any result gives an
empty log: then every test is missing, and none passes.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from xml.etree import ElementTree
from xml.parsers.expat import ExpatError, ParserCreate

from rollcall.sandbox.grading.verdict import (
    ERROR,
    FAILED,
    OUTCOMES,
    PASSED,
    SKIPPED,
    XFAIL,
    XPASS,
    TestLog,
    worse,
)
from rollcall.sandbox.user_code import convert_errors, load
from rollcall.schemas.errors import FailureCode, WorkFailed

Parser = Callable[[str], TestLog]
Lines = Iterable[tuple[str, str]]
"""Pairs of a test and an outcome, in order."""


def parse(name: str, text: str) -> TestLog:
    """Parse a text with one of PARSERS, or with a custom `module:function`.

    A custom parser takes the text, and returns a mapping from tests to outcomes. Raises WorkFailed.
    """
    if name in PARSERS:
        return PARSERS[name](text)
    parser = load("parser", name, {})
    with convert_errors(FailureCode.RAISED, f"parser {name!r} raised"):
        outcomes = dict(parser(text))
    unknown = sorted({str(each) for each in outcomes.values()} - set(OUTCOMES))
    if unknown:
        msg = f"parser {name!r} gives outcome {unknown[0]!r}; known are {', '.join(OUTCOMES)}"
        raise WorkFailed(FailureCode.RAISED, msg, retriable=False)
    return TestLog({str(test): str(outcome) for test, outcome in outcomes.items()})


def _log(lines: Lines, counts: Mapping[str, int] | None = None, wrong: str = "") -> TestLog:
    outcomes: dict[str, str] = {}
    for test, outcome in lines:
        outcomes[test] = worse(outcomes.get(test), outcome)
    return TestLog(outcomes, counts=counts, wrong=wrong)


PYTEST_SUMMARY = "short test summary info"
PYTEST_HEAD = re.compile(rf"=+ {PYTEST_SUMMARY} =+")
COLOUR = re.compile(r"\x1b\[[0-9;]*[mK]")
PYTEST_LINE = re.compile(r"(PASSED|FAILED|ERROR|XFAIL|XPASS) (\S.*)")
PYTEST_PART = re.compile(r"SUB(FAILED|XFAIL)([\[(].*)")
"""The line of a subtest: its description, followed by the test that it belongs to."""
WORD = re.compile(r"[^ \n]+")
REASON = re.compile(r" - |\n")
MOST_ENDS = 8
"""The number of ` - ` and line ends that are tried as the end of a test's name."""
PYTEST_SKIP = re.compile(r"(?:SKIPPED|SUBSKIPPED[\[(].*?) \[(\d+)\] \S+")
"""The line of skipped tests at one place, with their count."""
PYTEST_COUNTS = re.compile(r"(?:=+ )?((?:\d+ [a-z ]+(?:, )?)+) in [\d.]+s(?: \([\d:]+\))?(?: =+)?")
PYTEST_WORDS = {
    "passed": PASSED,
    "failed": FAILED,
    "error": ERROR,
    "errors": ERROR,
    "skipped": SKIPPED,
    "xfailed": XFAIL,
    "xpassed": XPASS,
}


def pytest_summary(text: str) -> TestLog:
    """Parse the lines of `pytest -rA` below the last `short test summary info`; none without one.

    A test has several lines if its teardown fails after it passed, or if one of its subtests fails:
    the worst outcome counts. Skipped tests are listed by file and line without their names, so they
    are only counted, and cannot be tests to pass.
    """
    whole = [line.rstrip() for line in COLOUR.sub("", text).split("\n")]
    heads = [number for number, line in enumerate(whole) if PYTEST_HEAD.fullmatch(line)]
    if not heads:
        return TestLog()
    lines: list[tuple[str, str]] = []
    parts: list[tuple[str, str]] = []
    skipped = 0
    counts: Counter[str] | None = None
    for line in whole[heads[-1] + 1 :]:
        if found := PYTEST_LINE.fullmatch(line):
            outcome, rest = found.groups()
            lines.append((rest if outcome == PASSED else _before_reason(rest), outcome))
        elif found := PYTEST_PART.fullmatch(line):
            parts.append((f"{found[2]}\n", found[1]))
        elif found := PYTEST_SKIP.match(line):
            skipped += int(found[1])
        elif found := PYTEST_COUNTS.fullmatch(line.strip()):
            counts = _counted(found[1].split(", "))
            break  # what follows was printed as the process ended
    log = _log([*lines, *_of_their_tests(parts, {name for name, _ in lines})])
    if counts is None:
        return log
    counts[SKIPPED] -= skipped
    # Convert the counts of lines into counts of tests.
    counts.subtract(outcome for _, outcome in (*lines, *parts))
    counts.update(log.outcomes.values())
    return TestLog(log.outcomes, counts=counts)


def _before_reason(text: str) -> str:
    """Return the name of a test before ` - ` and a reason; its brackets may hold any text."""
    bracket, dash = text.find("["), text.find(" - ")
    if bracket >= 0 and not 0 <= dash < bracket:
        end = text.find("] - ", bracket)
        return text[: end + 1] if end >= 0 else text
    return text[:dash] if dash >= 0 else text


def _of_their_tests(parts: Lines, tests: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield the tests of subtests' lines, in which the description may hold any words."""
    names = set(tests)
    first_words = {name.partition(" ")[0] for name in names}
    for line, outcome in parts:
        for word in WORD.finditer(line):
            if word[0] in first_words:
                ends = islice(REASON.finditer(line, word.start()), MOST_ENDS)
                for end in (each.start() for each in ends):
                    if line[word.start() : end] in names:
                        yield line[word.start() : end], outcome


def _counted(words: Iterable[str]) -> Counter[str]:
    counts: Counter[str] = Counter()
    for word in words:
        number, _, what = word.strip().partition(" ")
        if what in PYTEST_WORDS:
            counts[PYTEST_WORDS[what]] += int(number)
    return counts


UNITTEST_OUTCOME = re.compile(r"\b(ok|FAIL|ERROR|expected failure|unexpected success)$")
UNITTEST_SKIPPED = re.compile(r"(?:^|\.\.\. )(skipped) ")
UNITTEST_NAME = re.compile(r"(\w+) \(([\w.<>]+)\)")
UNITTEST_RAN = re.compile(r"Ran (\d+) tests? in ")
UNITTEST_END = re.compile(r"(?:OK|FAILED)(?: \((.*)\))?")
UNITTEST_WORDS = {
    "ok": PASSED,
    "FAIL": FAILED,
    "ERROR": ERROR,
    "skipped": SKIPPED,
    "expected failure": XFAIL,
    "unexpected success": XPASS,
}
UNITTEST_COUNTS = {
    "failures": FAILED,
    "errors": ERROR,
    "skipped": SKIPPED,
    "expected failures": XFAIL,
    "unexpected successes": XPASS,
}


def unittest_verbose(text: str) -> TestLog:
    """Parse the lines of `python -m unittest -v`; tests are named `module.Class.test`."""
    lines: list[tuple[str, str]] = []
    ran: int | None = None
    counts: Counter[str] | None = None
    name = ""
    for line in text.splitlines():
        if UNITTEST_NAME.match(line):
            name = unittest_name(line)
        if name and (found := UNITTEST_OUTCOME.search(line) or UNITTEST_SKIPPED.search(line)):
            lines.append((name, UNITTEST_WORDS[found[1]]))
            name = ""
        elif found := UNITTEST_RAN.match(line):
            ran = int(found[1])
        elif ran is not None and (found := UNITTEST_END.fullmatch(line)):
            counts = _unittest_counts(ran, found[1] or "")
    return _log(lines, counts)


def unittest_name(text: str) -> str:
    """Convert a test's name from `test (module.Class)`; other names stay unchanged.

    From Python 3.11 on the test is also printed after its class.
    """
    found = UNITTEST_NAME.match(text)
    if not found:
        return text
    test, place = found.groups()
    return place if place.endswith(f".{test}") else f"{place}.{test}"


def _unittest_counts(ran: int, words: str) -> Counter[str]:
    counts: Counter[str] = Counter()
    for word in filter(None, words.split(", ")):
        what, _, number = word.partition("=")
        if what in UNITTEST_COUNTS and number.isdigit():
            counts[UNITTEST_COUNTS[what]] += int(number)
    counts[PASSED] = ran - sum(counts.values())
    return counts


def junit_xml(text: str) -> TestLog:
    """Parse the JUnit reports that the command prints; tests are named `classname::name`.

    Errors and failures of a case are distinguished, and a document with entities is refused.
    """
    roots, wrong = _reports(text)
    log = _log(
        (_case_name(case), _case_outcome(case)) for root in roots for case in root.iter("testcase")
    )
    suites = [suite for root in roots for suite in root.iter("testsuite")]
    declared = sum(int(suite.get("tests") or 0) for suite in suites if _plain(suite))
    cases = sum(1 for root in roots for _ in root.iter("testcase"))
    if declared not in (0, cases):
        wrong = f"its report counts {declared} tests and has {cases}"
    return TestLog(log.outcomes, wrong=wrong)


def _reports(text: str) -> tuple[list[ElementTree.Element], str]:
    """Return the root of each report among other lines, and the fault if there is none."""
    content = text.encode("utf-8", "replace")
    roots, wrong, at = [], "", 0
    for _ in range(MOST_REPORTS):
        begin = JUNIT_BEGIN.search(content, at)
        if begin is None:
            break
        at = begin.end()
        try:
            end = _end_of_document(content, begin.start())
            roots.append(ElementTree.fromstring(content[begin.start() : end].decode()))
            at = end
        except (ExpatError, ElementTree.ParseError) as error:
            wrong = f"its report is no XML: {error}"
        except EntitiesDeclared:
            return [], "its report declares entities"
    return roots, "" if roots else wrong


class EntitiesDeclared(Exception):
    """A document has declarations of its own, perhaps of entities that are larger than it is."""


def _end_of_document(content: bytes, begin: int) -> int:
    """Return where the root element ends. Raises ExpatError, EntitiesDeclared."""
    parser, depth, found = ParserCreate("utf-8"), 0, -1

    def start(*_: object) -> None:
        nonlocal depth
        depth += 1

    def end(*_: object) -> None:
        nonlocal depth, found
        depth -= 1
        if not depth and found < 0:
            found = content.index(b">", begin + parser.CurrentByteIndex) + 1

    def declared(_name: str, _system: object, _public: object, internal: int) -> None:
        if internal:
            raise EntitiesDeclared

    parser.StartElementHandler, parser.EndElementHandler = start, end
    parser.StartDoctypeDeclHandler = declared
    try:
        parser.Parse(memoryview(content)[begin:], True)
    except ExpatError:
        if found < 0:  # else it is what stands behind the report
            raise
    return found


def _plain(suite: ElementTree.Element) -> bool:
    """Return True if a suite has no nested suites and its count is a number."""
    return suite.find("testsuite") is None and (suite.get("tests") or "").isdigit()


def _case_name(case: ElementTree.Element) -> str:
    return "::".join(filter(None, (case.get("classname"), case.get("name"))))


def _case_outcome(case: ElementTree.Element) -> str:
    if case.find("error") is not None:
        return ERROR
    if case.find("failure") is not None:
        return FAILED
    return PASSED if case.find("skipped") is None else SKIPPED


JUNIT_BEGIN = re.compile(rb"<\?xml[\s>]|<testsuites?[\s>]")
MOST_REPORTS = 64
"""The most places at which the beginning of a report is tried."""

GO_LINE = re.compile(r"\s*--- (PASS|FAIL|SKIP): (\S+)")
GO_LINE_END = re.compile(r"--- (PASS|FAIL|SKIP): (\S+) \(\d+\.\d\ds\)$")
"""A test may print without a line's end before it."""
GO_PACKAGE = re.compile(r"FAIL\t(\S+)(?: \[(?:build|setup) failed\])")
GO_WORDS = {"PASS": PASSED, "FAIL": FAILED, "SKIP": SKIPPED}


def go_test(text: str) -> TestLog:
    """Parse `go test -v`, with plain names of tests, or `-json`, with `package.Test`."""
    return _log(_go_lines(text))


def _go_lines(text: str) -> Iterator[tuple[str, str]]:
    for line in text.splitlines():
        if line.startswith("{"):
            yield from _go_event(line)
        elif found := GO_LINE.match(line) or GO_LINE_END.search(line):
            yield found[2], GO_WORDS[found[1]]
        elif found := GO_PACKAGE.match(line):
            yield found[1], ERROR


def _go_event(line: str) -> Iterator[tuple[str, str]]:
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        return
    action, package = str(event.get("Action")).upper(), event.get("Package")
    if action in GO_WORDS and event.get("Test"):
        yield f"{package}.{event['Test']}", GO_WORDS[action]
    elif action == "FAIL":
        yield f"{package}", ERROR


TAP_LINE = re.compile(r"(not )?ok\b(.*)", re.IGNORECASE)
TAP_DIRECTIVE = re.compile(r"(?<!\\)# *(SKIP|TODO\b|time=)", re.IGNORECASE)
TAP_NUMBER = re.compile(r"\d*")
TAP_PLAN = re.compile(r"1\.\.(\d+)(?: .*)?")


def tap(text: str) -> TestLog:
    """Parse the Test Anything Protocol; tests are named by description, else by number."""
    lines: list[tuple[str, str]] = []
    planned: int | None = None
    wrong = ""
    for line in text.splitlines():
        if found := TAP_LINE.fullmatch(line.rstrip()):
            directive = TAP_DIRECTIVE.search(found[2])
            said = found[2][: directive.start()] if directive else found[2]
            name = _tap_name(said.strip(" ")) or str(len(lines) + 1)
            word = directive[1].upper() if directive else ""
            lines.append((name, _tap_outcome(bool(found[1]), word)))
        elif found := TAP_PLAN.fullmatch(line):
            planned = int(found[1])
        elif line.startswith("Bail out!"):
            wrong = f"it bailed out: {line[9:].strip()[:200]}"
    if not wrong and planned is not None and planned != len(lines):
        wrong = f"it planned {planned:,} tests and ran {len(lines):,}"
    return _log(lines, wrong=wrong)


def _tap_name(said: str) -> str:
    """Return the description in a line, else the number."""
    number = TAP_NUMBER.match(said)[0]  # type: ignore[index]
    name = said[len(number) :].strip(" ").removeprefix("-").strip(" ")
    return name.replace("\\#", "#") or number


def _tap_outcome(failed: bool, directive: str) -> str:
    if directive == "SKIP":
        return SKIPPED
    if directive == "TODO":
        return XFAIL if failed else XPASS
    return FAILED if failed else PASSED


def exit_code(text: str) -> TestLog:
    """Parse nothing: the exit code alone decides."""
    del text
    return TestLog()


PARSERS: Mapping[str, Parser] = {
    "pytest": pytest_summary,
    "unittest": unittest_verbose,
    "junit-xml": junit_xml,
    "go-test": go_test,
    "tap": tap,
    "exit-code": exit_code,
}
