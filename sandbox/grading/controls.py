"""Tests of ours beside the reference's, some of which must fail: whoever makes all pass is found.

Their names and what they hold are drawn for one grading, so nothing in a patch can know them.
"""

import secrets
from dataclasses import dataclass

from sandbox.grading.verdict import ERROR, FAILED, PASSED

FORMS = {
    "equal": (
        PASSED,
        "def test_{name}():\n    assert [{a}, {b}] == [{a}, {a} + {d}]\n",
    ),
    "unequal": (
        FAILED,
        "def test_{name}():\n    assert {a} == {b}\n",
    ),
    "raises": (
        FAILED,
        "def test_{name}():\n    raise ValueError({a})\n",
    ),
    "case": (
        FAILED,
        "class Test{name}(unittest.TestCase):\n"
        "    def test_{name}(self):\n        self.assertEqual({a}, {b})\n",
    ),
    "case_passes": (
        PASSED,
        "class Test{name}(unittest.TestCase):\n"
        "    def test_{name}(self):\n        self.assertEqual({a} + {d}, {b})\n",
    ),
    "fixture": (
        ERROR,
        "@pytest.fixture\ndef f{name}():\n    raise LookupError({a})\n\n\n"
        "def test_{name}(f{name}):\n    pass\n",
    ),
}
"""What becomes of each, and its text."""


@dataclass(frozen=True, slots=True)
class Controls:
    """A file of tests, and what is to become of each."""

    path: str
    """The name of their file."""
    text: str
    expected: dict[str, str]
    """By test."""


def controls() -> Controls:
    """New ones."""
    path = f"test_{_name()}.py"
    texts, expected = ["import unittest\n\nimport pytest\n"], {}
    for form in sorted(FORMS, key=lambda _: secrets.randbits(32)):
        outcome, text = FORMS[form]
        name, a, d = _name(), secrets.randbelow(10_000), 1 + secrets.randbelow(10_000)
        texts.append(text.format(name=name, a=a, b=a + d, d=d))
        where = f"Test{name}::test_{name}" if form.startswith("case") else f"test_{name}"
        expected[f"{path}::{where}"] = outcome
    return Controls(path, "\n\n".join(texts), expected)


def _name() -> str:
    return "".join(secrets.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(8))
