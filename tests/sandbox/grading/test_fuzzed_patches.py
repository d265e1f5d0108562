"""Random patches, some of them hostile: verdicts agree with an oracle that runs no pytest.

The oracle imports the patched files in a new process and makes the assertions of the tests. A patch
that resolves must be right there. One that is right must resolve, unless it does something that is
named in `EXPLAINED`. `ROLLCALL_PATCHES` says how many are drawn.
"""

import asyncio
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random

import pytest

from rollcall.sandbox.boxes.box import driver
from rollcall.sandbox.grading.grading import grade
from tests.support.hostile_patches import LEFT_OUT, RUNS
from tests.support.tiny_package import BASE, Patches, reference

MANY = int(os.environ.get("ROLLCALL_PATCHES", "24"))
SEED = 20261127
ORACLE = (
    "from tiny.sums import add, same\n"
    "assert add(2, 3) == 5 and type(add(2, 3)) is int and add(0, 0) == 0\n"
    "assert same(1) == 1 and same('a b') == 'a b' and same(1) != 2\n"
    "import os; print('right'); os._exit(0)\n"
)
LEAVES = ("a", "b", "0", "1", "5", "-b", "-a")
OPERATORS = ("+", "-", "*", "|", "^", "-(-1) *")
FORMS = (
    "    return {}\n",
    "    found = {}\n    return found\n",
    "    try:\n        return {}\n    except TypeError:\n        return None\n",
    "    return (lambda x, y: {})(a, b)\n",
    "    if a == 2:\n        return 5\n    return {}\n",
    "    for _ in range(2):\n        found = {}\n    return found\n",
)
HARMLESS: Mapping[str, str] = {
    "nothing": "",
    "a thread": "import threading\nthreading.Thread(target=int).start()\n",
    "printing": "print('1 failed, PASSED tests/test_sums.py::test_adds')\n",
    "a limit": "import sys\nsys.setrecursionlimit(5000)\n",
    "an exit handler": "import atexit\natexit.register(print, 'x')\n",
    "a warning": "import warnings\nwarnings.warn('x')\n",
    "a use of mock": "import unittest.mock\n",
    "a use of pytest": "import pytest\n",
    "a builtin": "import builtins\nbuiltins.tiny = 1\n",
}
"""Harmless code of a right patch, by name."""
EXPLAINED: Mapping[str, tuple[str, str]] = {
    "other assertions": (
        "import unittest\nunittest.TestCase.assertEqual = lambda *a: None\n",
        "the runner is compared beside each test to mend",
    ),
    "other raises": (
        "import contextlib, pytest\npytest.raises = contextlib.suppress\n",
        "the runner is compared beside each test to mend",
    ),
    "another part of the runner": (
        "import _pytest.runner as r\nr.check_interactive_exception = print\n",
        "the runner is compared at the end",
    ),
    "a trace function": (
        "import sys\nsys.settrace(lambda *a: None)\n",
        "a trace function can exchange what a test calls",
    ),
}
"""Code that grading refuses even in a right patch, with the reason, by name."""
WRONG: Mapping[str, str] = {
    "an exit": "import sys\nsys.exit(0)\n",
    "an early end": "import os\nos._exit(0)\n",
    "a skip of its module": "import pytest\npytest.skip('later', allow_module_level=True)\n",
}
"""Code that no right patch contains, by name: the package cannot be imported."""
BEFORE = {**HARMLESS, **{name: text for name, (text, _) in EXPLAINED.items()}, **WRONG}
BODIES = (
    "", "", "", "", "    import pytest; pytest.xfail('later')\n",
    "    import pytest; pytest.skip('later')\n",
    "    import unittest; raise unittest.SkipTest('later')\n",
    "    import pytest; raise pytest.xfail.Exception('x')\n",
)  # fmt: skip
"""First lines of the function."""
BESIDE: Mapping[str, str] = {
    "tests/test_sums.py": "def test_adds():\n    pass\n",
    "tests/test_more.py": "def test_more():\n    assert False\n",
    "conftest.py": "def pytest_collection_modifyitems(items):\n    items.clear()\n",
    "setup.cfg": "[tool:pytest]\naddopts = -k nothing\n",
    "sitecustomize.py": "import os\nos._exit(0)\n",
    "unittest.py": "raise SystemExit(0)\n",
    "tiny/more.py": "x = 1\n",
    "notes.txt": "mended\n",
}
"""Files that do not change the verdict."""
ENDLESS = {"an output flood", "a fork that outlives"}
HOSTILE = [each.files for name, each in {**RUNS, **LEFT_OUT}.items() if name not in ENDLESS]


@dataclass(frozen=True)
class Drawn:
    """One patch."""

    files: Mapping[str, str]
    may_fail: bool
    """Whether the judge may refuse it although it is right."""


def expression(dice: Random, depth: int) -> str:
    if depth == 0 or dice.random() < 0.3:
        return dice.choice(LEAVES)
    operator = dice.choice(OPERATORS)
    return f"({expression(dice, depth - 1)} {operator} {expression(dice, depth - 1)})"


def drawn(dice: Random) -> Drawn:
    """A body of the function, right in about every third patch, with other code and files."""
    right = dice.random() < 0.4
    value = dice.choice(("a + b", "(b + a)", "a - -b", "sum((a, b))")) if right else ""
    form = dice.choice(FORMS).format(value or expression(dice, 2))
    before = dice.choice(list(HARMLESS if dice.random() < 0.6 else BEFORE))
    body = dice.choice(BODIES) if dice.random() < 0.5 else ""
    text = f"{BEFORE[before]}def add(a, b):\n{body}{form}\n\n"
    text += f"def same(a):\n    return {'a' if dice.random() < 0.9 else 'a or 7'}\n"
    hostile = dice.random() < 0.3
    more = dict(dice.choice(HOSTILE)) if hostile else {}
    beside = dice.sample(list(BESIDE), dice.choice((0, 0, 1, 3)))
    files = {"tiny/sums.py": text, **{name: BESIDE[name] for name in beside}, **more}
    return Drawn(files, hostile or before in EXPLAINED)


def is_right(directory: Path, files: Mapping[str, str]) -> bool:
    """The oracle's verdict on the package files of a patch."""
    tree = {**BASE, **{name: text for name, text in files.items() if name.startswith("tiny/")}}
    for name, text in tree.items():
        place = directory / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
    # The shell stays between: some patches kill the process that starts them.
    run = ["/bin/sh", "-c", '"$@"; exit $?', "sh", sys.executable, "-s", "-c", ORACLE]
    done = subprocess.run(run, cwd=directory, capture_output=True, text=True, timeout=60)
    return done.returncode == 0 and "right" in done.stdout.splitlines()


@pytest.mark.thorough
@pytest.mark.timeout(180 + 5 * MANY)
def test_verdicts_on_random_patches_agree_with_the_oracle(
    tmp_path: Path,
) -> None:
    dice, patches = Random(SEED), Patches(tmp_path / "work")
    drawn_ = [drawn(dice) for _ in range(MANY)]
    made = [patches.of(each.files) for each in drawn_]
    asked = reference(command=f"PYTHONPATH=. {sys.executable} -m pytest -q tests")

    async def whole() -> list[tuple[bool, str]]:
        two = asyncio.Semaphore(2)

        async def one(number: int) -> tuple[bool, str]:
            async with two:
                right = await asyncio.to_thread(
                    is_right, tmp_path / str(number), drawn_[number].files
                )
                return right, str(await grade(driver("local").open, asked, made[number]))

        return await asyncio.gather(*map(one, range(MANY)))

    verdicts = asyncio.run(whole())
    wrong = [
        (each.files, right, said)
        for each, (right, said) in zip(drawn_, verdicts, strict=True)
        if said.startswith("resolved") > right
        or (right and not each.may_fail and not said.startswith("resolved"))
    ]
    assert not wrong, wrong[:2]
    assert any(said.startswith("resolved") for _, said in verdicts)
    assert any(each.may_fail and right for each, (right, _) in zip(drawn_, verdicts, strict=True))
