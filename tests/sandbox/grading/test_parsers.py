"""Output of each runner is parsed; any other text in it is tolerated."""

import json
import time
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollcall.sandbox.grading.parsers import PARSERS, PYTEST_SUMMARY, parse
from rollcall.sandbox.grading.verdict import OUTCOMES, TestLog, contradiction
from rollcall.sandbox.tasks.task_file import PARSERS as NAMES
from rollcall.schemas.errors import WorkFailed

PYTEST = """...FsxXEFsxF.F                                                           [100%]
PASSED tests/test_a.py::printed_by_a_test
=========================== short test summary info ============================
PASSED tests/test_a.py::test_a
PASSED tests/test_a.py::test_p[a - b]
PASSED tests/test_a.py::T::test_u
SKIPPED [1] tests/test_a.py:7: later
SKIPPED [2] tests/test_a.py:20: why
XFAIL tests/test_a.py::test_x - not yet
XFAIL tests/test_a.py::T::test_d
XPASS tests/test_a.py::test_xp
ERROR tests/test_a.py::test_e - ValueError: x
FAILED tests/test_a.py::test_f[a - b] - AssertionError: no - [way]
FAILED tests/test_a.py::T::test_b - AssertionError: 1 != 2
2 failed, 3 passed, 3 skipped, 2 xfailed, 1 xpassed, 1 error in 0.30s
"""
UNITTEST = """test_b (tests.test_a.T.test_b) ... FAIL
test_c (tests.test_a.T.test_c) ... skipped 'why ... ok'
test_d (tests.test_a.T.test_d) ... expected failure
test_er (tests.test_a.T.test_er) ... ERROR
test_u (tests.test_a.T)
Says what. ... ok
test_us (tests.test_a.T.test_us) ... unexpected success

======================================================================
ERROR: test_er (tests.test_a.T.test_er)
----------------------------------------------------------------------
Ran 6 tests in 0.023s

FAILED (failures=1, errors=1, skipped=1, expected failures=1, unexpected successes=1)
"""
JUNIT = """noise <b>
<?xml version="1.0" encoding="utf-8"?><testsuites><testsuite tests="4" errors="1" failures="1">
<testcase classname="tests.test_a" name="test_a" time="0.001" />
<testcase classname="tests.test_a" name="test_f[a &lt; b]"><failure>E</failure></testcase>
<testcase classname="tests.test_a" name="test_s"><skipped /></testcase>
<testcase name="test_e"><error message="x">E</error></testcase>
</testsuite></testsuites> more
"""
GO = """=== RUN   TestA
--- PASS: TestA (0.00s)
=== RUN   TestB/with_a
    --- FAIL: TestB/with_a (0.00s)
--- FAIL: TestB (0.00s)
--- SKIP: TestC (0.00s)
FAIL
FAIL\texample.com/built [build failed]
ok  \texample.com/p\t0.01s
"""
TAP = """TAP version 13
1..6
ok 1 - adds
not ok 2 - subtracts
  ---
  message: no
  ...
ok 3 # SKIP no network
not ok 4 - later # TODO not yet
ok 5 - sooner # TODO not yet
ok
"""


def outcomes(name: str, text: str) -> dict[str, str]:
    log = parse(name, text)
    assert log.wrong == ""
    return dict(log.outcomes)


def test_every_parser_name_has_a_parser() -> None:
    assert set(NAMES) == set(PARSERS)


def test_pytest() -> None:
    assert outcomes("pytest", PYTEST) == {
        "tests/test_a.py::test_a": "PASSED",
        "tests/test_a.py::test_p[a - b]": "PASSED",
        "tests/test_a.py::T::test_u": "PASSED",
        "tests/test_a.py::test_x": "XFAIL",
        "tests/test_a.py::T::test_d": "XFAIL",
        "tests/test_a.py::test_xp": "XPASS",
        "tests/test_a.py::test_e": "ERROR",
        "tests/test_a.py::test_f[a - b]": "FAILED",
        "tests/test_a.py::T::test_b": "FAILED",
    }
    log = parse("pytest", PYTEST)
    assert contradiction(TestLog(log.outcomes, 1, log.counts)) == ""
    more = parse("pytest", PYTEST.replace("3 passed", "4 passed"))
    assert "counts 4 PASSED" in contradiction(TestLog(more.outcomes, 1, more.counts))


def test_only_the_last_pytest_summary_is_parsed() -> None:
    assert outcomes("pytest", "PASSED a\nFAILED b - no\n1 passed, 1 failed in 0.1s\n") == {}
    second = "== short test summary info ==\nPASSED c\nPASSED d\nERROR d - torn down\n"
    assert outcomes("pytest", PYTEST + second) == {"c": "PASSED", "d": "ERROR"}


PARTS = """=========================== short test summary info ============================
PASSED tests/test_a.py::T::test_parts
PASSED tests/test_a.py::test_p[a - b]
PASSED tests/test_a.py::test_ends
PASSED tests/test_a.py::test_a
SUBSKIPPED(n=1) [2] tests/test_a.py:9: a part
SUBFAILED[of tests/test_a.py - a] (n=1) tests/test_a.py::T::test_parts - AssertionError: 1 !...
SUBFAILED(n=2) tests/test_a.py::T::test_parts
SUBFAILED(<subtest>) tests/test_a.py::test_p[a - b] - assert False
SUBXFAIL(n=1) tests/test_a.py::test_a - later
FAILED tests/test_a.py::test_f - contains 1 failed subtest
ERROR tests/test_a.py::test_ends - OSError: it is gone
4 failed, 4 passed, 2 skipped, 1 xfailed, 1 error, 7 subtests passed in 20.00s
"""


def test_pytest_test_fails_with_a_subtest_and_errors_with_its_teardown() -> None:
    log = parse("pytest", PARTS)

    assert log.outcomes == {
        "tests/test_a.py::T::test_parts": "FAILED",
        "tests/test_a.py::test_p[a - b]": "FAILED",
        "tests/test_a.py::test_ends": "ERROR",
        "tests/test_a.py::test_a": "XFAIL",
        "tests/test_a.py::test_f": "FAILED",
    }
    assert contradiction(TestLog(log.outcomes, 1, log.counts)) == ""
    for more in ("5 failed, 4", "4 failed, 5"):
        odd = parse("pytest", PARTS.replace("4 failed, 4", more))
        assert "its summary counts" in contradiction(TestLog(odd.outcomes, 1, odd.counts))


def test_unittest() -> None:
    log = parse("unittest", UNITTEST)

    assert log.outcomes == {
        "tests.test_a.T.test_b": "FAILED",
        "tests.test_a.T.test_c": "SKIPPED",
        "tests.test_a.T.test_d": "XFAIL",
        "tests.test_a.T.test_er": "ERROR",
        "tests.test_a.T.test_u": "PASSED",
        "tests.test_a.T.test_us": "XPASS",
    }
    assert contradiction(TestLog(log.outcomes, 1, log.counts)) == ""
    assert "exit code 0" in contradiction(TestLog(log.outcomes, 0, log.counts))


def test_junit_xml() -> None:
    assert outcomes("junit-xml", JUNIT) == {
        "tests.test_a::test_a": "PASSED",
        "tests.test_a::test_f[a < b]": "FAILED",
        "tests.test_a::test_s": "SKIPPED",
        "test_e": "ERROR",
    }
    assert "counts 5 tests" in parse("junit-xml", JUNIT.replace('tests="4"', 'tests="5"')).wrong
    bomb = JUNIT.replace("<testsuites>", '<!DOCTYPE x [<!ENTITY a "b">]><testsuites>')
    assert "entities" in parse("junit-xml", bomb).wrong
    assert "no XML" in parse("junit-xml", JUNIT.replace("</testsuite>", "")).wrong


def test_go() -> None:
    assert outcomes("go-test", GO) == {
        "TestA": "PASSED",
        "TestB": "FAILED",
        "TestB/with_a": "FAILED",
        "TestC": "SKIPPED",
        "example.com/built": "ERROR",
    }
    events = [
        {"Action": "run", "Package": "p", "Test": "TestA"},
        {"Action": "output", "Package": "p", "Test": "TestA", "Output": "--- FAIL: TestA"},
        {"Action": "pass", "Package": "p", "Test": "TestA"},
        {"Action": "fail", "Package": "p", "Test": "TestB"},
        {"Action": "fail", "Package": "q"},
    ]
    text = "\n".join(map(json.dumps, events)) + "\n{no json\n"
    assert outcomes("go-test", text) == {"p.TestA": "PASSED", "p.TestB": "FAILED", "q": "ERROR"}


def test_tap() -> None:
    assert outcomes("tap", TAP) == {
        "adds": "PASSED",
        "subtracts": "FAILED",
        "3": "SKIPPED",
        "later": "XFAIL",
        "sooner": "XPASS",
        "6": "PASSED",
    }
    assert "planned 7" in parse("tap", TAP.replace("1..6", "1..7")).wrong
    assert "bailed out: disk" in parse("tap", "1..2\nok 1\nBail out! disk\n").wrong


def of_ones_own(text: str) -> dict[str, str]:
    """`test=OUTCOME` lines."""
    return dict(line.split("=") for line in text.split())


def test_custom_parser_is_loaded_and_checked() -> None:
    name = f"{__name__}:of_ones_own"

    assert outcomes(name, "a=PASSED b=FAILED") == {"a": "PASSED", "b": "FAILED"}
    with pytest.raises(WorkFailed, match="'GREEN'; known are ERROR"):
        parse(name, "a=GREEN")
    with pytest.raises(WorkFailed, match="raised: ValueError"):
        parse(name, "a")
    with pytest.raises(WorkFailed, match="no module 'nowhere'"):
        parse("nowhere:x", "")


def test_worse_outcome_of_a_repeated_test_counts() -> None:
    text = "--- FAIL: TestA (0.00s)\n--- PASS: TestA (0.00s)\n"

    assert outcomes("go-test", text) == {"TestA": "FAILED"}


SAMPLES = [PYTEST, UNITTEST, JUNIT, GO, TAP]


@given(st.sampled_from(sorted(PARSERS)), st.text() | st.sampled_from(SAMPLES), st.data())
def test_parsers_accept_any_text(name: str, text: str, data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(text)))
    odd = text[:cut] + data.draw(st.text(max_size=20)) + text[cut:]

    log = parse(name, odd)

    assert set(log.outcomes.values()) <= set(OUTCOMES)


@given(st.lists(st.sampled_from(SAMPLES), max_size=4))
def test_exit_code_parser_finds_no_outcomes_in_runner_output(texts: list[str]) -> None:
    assert parse("exit-code", "\n".join(texts)).outcomes == {}


LONG = st.builds(
    lambda begin, part, times, end: begin + part * times + end,
    st.sampled_from([
        "ok", "not ok", "ok 1 -", "FAILED a", "SUBFAILED[", "SUBSKIPPED[", "SKIPPED [1] ", "1 a",
        "a (b.c) ... ", "Ran ", "--- PASS: ", "{", "<testsuite>", "=== ",
        f"== {PYTEST_SUMMARY} ==\n1 ",
    ]),
    st.sampled_from([" ", "#", "[", "]", "- ", " - ", "a, ", "1 a", "... ", "9", "<a>", '{"a":',
                     " [", "\\#", "# SKI", "in ", "=", "ok ", "(", "skipped "]),
    st.just(20_000),
    st.sampled_from(["", "x", "x#y", "]", " in 1s", "\n", "!"]),
)  # fmt: skip


@given(st.sampled_from(sorted(PARSERS)), LONG)
def test_parsing_time_is_linear_in_line_length(name: str, line: str) -> None:
    """Twice the text takes about twice the CPU; backtracking would take four times that or more."""
    with suppress(ValueError):  # too many digits; the parser process reports that
        one, two = _cpu_s(name, line), _cpu_s(name, line * 2)
        assert two < 3.2 * one + 0.05


def _cpu_s(name: str, line: str) -> float:
    """The least CPU time of three runs."""
    took = []
    for _ in range(3):
        began = time.process_time()
        PARSERS[name](f"== {PYTEST_SUMMARY} ==\n{line}\n")
        took.append(time.process_time() - began)
    return min(took)


def test_subtests_of_many_word_tests_are_matched_within_five_seconds() -> None:
    tests = [f"PASSED a{number % 10} {number}" for number in range(10_000)]
    parts = ["SUBFAILED[" + "a1 " * 50 for _ in range(1_000)] + ["SUBFAILED[x] a1 11 - why"]
    began = time.process_time()

    log = parse("pytest", f"== {PYTEST_SUMMARY} ==\n" + "\n".join([*tests, *parts]))

    assert log.outcomes["a1 11"] == "FAILED"
    assert time.process_time() - began < 5.0


@pytest.mark.parametrize(
    ("line", "name", "outcome"),
    [
        ("ok 1 - a # SKIP not here", "a", "SKIPPED"),
        ("not ok 2 - b \\# c", "b # c", "FAILED"),
        ("not ok - later # todo some day", "later", "XFAIL"),
        ("ok 7 issue # 5", "issue # 5", "PASSED"),
        ("ok 8", "8", "PASSED"),
        ("ok", "1", "PASSED"),
        ("ok 9 - - dashes", "- dashes", "PASSED"),
    ],
)
def test_tap_line_gives_test_name_and_outcome(line: str, name: str, outcome: str) -> None:
    assert outcomes("tap", line) == {name: outcome}


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("FAILED a.py::t - assert [1]", "a.py::t"),
        ("FAILED a.py::t[x - y] - why", "a.py::t[x - y]"),
        ("FAILED a.py::t[x]", "a.py::t[x]"),
        ("FAILED a[b", "a[b"),
        ("FAILED a[b]c", "a[b]c"),
    ],
)
def test_pytest_failure_line_gives_the_test_name(line: str, name: str) -> None:
    assert outcomes("pytest", f"== {PYTEST_SUMMARY} ==\n{line}\n") == {name: "FAILED"}


HEAD = f"=== {PYTEST_SUMMARY} ===\n"
ODD = "a.py::t[a\u2028b\x85c]"
NAMED = f"a.py::t[{PYTEST_SUMMARY}]"
RAN = "\n\nRan 1 test in 0.0s\n\nOK\n"
ONE, OTHER = [
    f'<testsuite tests="1"><testcase classname="c" name="{name}"/></testsuite>' for name in "nm"
]
AMONG_OTHER_LINES: dict[str, tuple[str, str, set[str]]] = {
    "colours": (
        "pytest", f"\x1b[1m{HEAD[:-1]}\x1b[0m\n\x1b[32mPASSED\x1b[0m a.py::t\n", {"a.py::t"},
    ),
    "odd line ends in a name": ("pytest", f"{HEAD}PASSED {ODD}\n", {ODD}),
    "a name with the head": ("pytest", f"{HEAD}PASSED {NAMED}\n", {NAMED}),
    "printed at exit": (
        "pytest", f"{HEAD}PASSED a.py::t\n== 1 passed in 0.01s ==\nPASSED a.py::u\n", {"a.py::t"},
    ),
    "printed by a test": ("unittest", f"t (m.C.t) ... hello\nok{RAN}", {"m.C.t"}),
    "printed on its line": ("unittest", f"t (m.C.t) ... I took it ok{RAN}", {"m.C.t"}),
    "printed without an end": ("go-test", "hello--- PASS: TestA (0.00s)\n", {"TestA"}),
    "a report among lines": (
        "junit-xml", f"a\n<testsuite is a word\n{ONE}\nb </testsuites> c\n", {"c::n"},
    ),
    "two reports": ("junit-xml", f"{ONE}\n{OTHER}", {"c::n", "c::m"}),
    "a page beside a report": (
        "junit-xml", f"<?xml version='1.0'?><!DOCTYPE html><p/>\n{ONE}", {"c::n"},
    ),
    "how long it took": ("tap", "1..1\nok 1 - a # time=3.1ms\n", {"a"}),
}  # fmt: skip


@pytest.mark.parametrize("kind", AMONG_OTHER_LINES)
def test_passed_tests_are_found_among_other_output(kind: str) -> None:
    parser, text, passed = AMONG_OTHER_LINES[kind]

    assert outcomes(parser, text) == dict.fromkeys(passed, "PASSED")
