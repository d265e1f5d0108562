"""Control tests that run beside the reference's; some must fail, which exposes a forged run.

Their names and values are drawn for each grading, so a patch cannot know them.
"""

import secrets
from dataclasses import dataclass

from rollcall.sandbox.grading.verdict import ERROR, FAILED, PASSED

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
"""The expected outcome and the text of each form of control test."""


@dataclass(frozen=True, slots=True)
class Controls:
    """A file of control tests, and their expected outcomes."""

    path: str
    """The name of their file."""
    text: str
    expected: dict[str, str]
    """The expected outcome by test."""


def controls() -> Controls:
    """Draw new control tests."""
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
