"""Skips and expected failures count only if the reference's tests ask for them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollcall.sandbox.grading.outcomes import Marks, about
from rollcall.sandbox.grading.verdict import OUTCOMES, SKIPPED, XFAIL

FILE = """\
import pytest
import unittest

slow = pytest.mark.skipif(True, reason="slow")


@slow
def test_marked():
    pass


@pytest.mark.xfail
def test_expected():
    assert False


def test_plain():
    assert True


class TestThings:
    @pytest.mark.parametrize("n", [1, pytest.param(2, marks=pytest.mark.xfail)])
    def test_some(self, n):
        assert n == 1

    def test_plain(self):
        pass


class Cases(unittest.TestCase):
    @unittest.expectedFailure
    def test_later(self):
        self.fail()

    def test_asked(self):
        self.skipTest("not here")
"""
PLAIN = """\
def test_plain():
    assert True


class TestThings:
    def test_plain(self):
        pass
"""


def marks(**more: str) -> Marks:
    texts = {"tests/test_a.py": FILE, "tests/test_b.py": PLAIN, **more}
    files = {name: text.encode() for name, text in texts.items()}
    return Marks(files, lambda path: path in files)


@pytest.mark.parametrize(
    ("test", "outcome", "counts"),
    [
        ("tests/test_a.py::test_marked", SKIPPED, True),
        ("tests/test_a.py::test_expected", XFAIL, True),
        ("tests/test_a.py::test_plain", XFAIL, False),
        ("tests/test_a.py::TestThings::test_some[2]", XFAIL, True),
        ("tests/test_a.py::TestThings::test_plain", XFAIL, False),
        ("tests/test_a.py::Cases::test_later", XFAIL, True),
        ("tests/test_a.py::Cases::test_asked", SKIPPED, True),
        ("tests/test_a.py::made_while_it_runs", XFAIL, True),
        ("tests/test_b.py::test_plain", SKIPPED, False),
        ("tests/test_b.py::TestThings::test_plain", XFAIL, False),
        ("tests/test_c.py::test_plain", SKIPPED, False),
        ("test_later (test_a.Cases)", XFAIL, True),
    ],
)
def test_skip_and_xfail_count_if_the_test_file_asks_for_them(
    test: str, outcome: str, counts: bool
) -> None:
    assert marks().allow(test, outcome, "") is counts


@pytest.mark.parametrize(
    ("where", "counts"),
    [
        ("", True),
        ("tests/test_a.py", True),
        ("/usr/lib/python3/site-packages/numpy/testing/__init__.py", True),
        ("tiny/sums.py", False),
        ("tests/test_z.py", False),
    ],
)
def test_code_under_test_cannot_cause_a_skip_that_counts(where: str, counts: bool) -> None:
    assert marks().allow("tests/test_a.py::test_marked", SKIPPED, where) is counts


def test_conftest_marks_apply_only_to_tests_below_it() -> None:
    known = marks(**{"tests/deep/conftest.py": "item.add_marker(pytest.mark.skip)"})
    known_above = marks(**{"conftest.py": "item.add_marker(pytest.mark.skip)"})

    assert not known.allow("tests/test_b.py::test_plain", SKIPPED, "")
    assert known.allow("tests/deep/test_c.py::test_plain", SKIPPED, "")
    assert known_above.allow("tests/test_b.py::test_plain", SKIPPED, "")
    assert not known_above.allow("tests/test_b.py::test_plain", XFAIL, "")


@given(st.sampled_from(sorted(set(OUTCOMES) - {SKIPPED, XFAIL})), st.text(), st.text())
def test_outcomes_other_than_skip_and_xfail_always_count(
    outcome: str, test: str, where: str
) -> None:
    assert marks().allow(test, outcome, where)


@given(st.text(), st.text())
def test_any_source_text_and_test_name_can_be_read(source: str, test: str) -> None:
    assert isinstance(about(source, test), str)
