"""The instruction of a task made of two releases: a fixed text with the names of tests."""

import re
from collections.abc import Sequence

STATEMENT = """\
This directory holds the source of {name} {release}. {count} that a later release brought along \
{fail} with it. Change the code so that {they} pass{es}, and so that everything that passes now \
goes on passing.

{tests}

Where a name ends in brackets, they hold the values that the test is run with. What \
lies at {folder} is of this release, so the newer tests are not in it; they are put in its place \
when your work is judged, and what you change there counts for nothing. There is no network.
"""


def statement(name: str, release: str, places: Sequence[str], tests: Sequence[str]) -> str:
    """Return the text of `instruction.md`; it does not depend on the fix."""
    one = len(tests) == 1
    return STATEMENT.format(
        name=name, release=release, folder=" and ".join(places),
        count="One test" if one else f"{len(tests)} tests",
        fail="fails" if one else "fail", they="it" if one else "they", es="es" if one else "",
        tests="\n".join(f"- {test}\n  ({in_words(test)})" for test in tests),
    )  # fmt: skip


def in_words(test: str) -> str:
    """Write `tests/test_a.py::TestB::test_c_of_d[1]` as `a, b: c of d`."""
    path, *names = re.sub(r"\[.*", "", test, flags=re.DOTALL).split("::")
    places = [path.rpartition("/")[2].removesuffix(".py"), *names[:-1]]
    return ", ".join(map(_words, places)) + "".join(f": {_words(name)}" for name in names[-1:])


def _words(name: str) -> str:
    spaced = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name).replace("_", " ")
    words = [word for word in spaced.lower().split() if word not in ("test", "tests")]
    return " ".join(words) or name
