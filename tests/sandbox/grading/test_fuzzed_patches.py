"""Random patches, some of them hostile: the judge agrees with an oracle that runs no pytest.

The oracle imports what a patch has written in a new process and asserts what the tests do. A patch
that resolves must be right there; one that is right and does nothing to the runner must resolve.
`ROLLCALL_PATCHES` says how many are drawn.
"""

import asyncio
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random

from sandbox.boxes.box import driver
from sandbox.grading.grading import grade
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
BESIDE = (
    "", "import threading\nthreading.Thread(target=int).start()\n", "print('1 failed')\n",
    "import sys\nsys.setrecursionlimit(5000)\n", "import atexit\natexit.register(print, 'x')\n",
    "import warnings\nwarnings.warn('x')\n", "import unittest.mock\n", "import pytest\n",
    "import builtins\nbuiltins.tiny = 1\n",
)  # fmt: skip
"""What a right patch may do."""
ENDLESS = {"an output flood", "a fork that outlives"}
HOSTILE = [each.files for name, each in {**RUNS, **LEFT_OUT}.items() if name not in ENDLESS]


@dataclass(frozen=True)
class Drawn:
    """One patch."""

    files: Mapping[str, str]
    hostile: bool


def expression(dice: Random, depth: int) -> str:
    if depth == 0 or dice.random() < 0.3:
        return dice.choice(LEAVES)
    operator = dice.choice(OPERATORS)
    return f"({expression(dice, depth - 1)} {operator} {expression(dice, depth - 1)})"


def drawn(dice: Random) -> Drawn:
    """A body of the function, right in about every third patch, and what stands beside it."""
    right = dice.random() < 0.35
    body = dice.choice(("a + b", "(b + a)", "a - -b")) if right else expression(dice, 2)
    text = f"{dice.choice(BESIDE)}def add(a, b):\n{dice.choice(FORMS).format(body)}\n\n"
    text += f"def same(a):\n    return {'a' if dice.random() < 0.9 else 'a or 7'}\n"
    hostile = dice.random() < 0.4
    other = dict(dice.choice(HOSTILE)) if hostile else {}
    return Drawn({"tiny/sums.py": text, **other}, hostile)


def is_right(directory: Path, files: Mapping[str, str]) -> bool:
    """What the oracle says of the files that a patch writes to the package."""
    tree = {**BASE, **{name: text for name, text in files.items() if name.startswith("tiny/")}}
    for name, text in tree.items():
        place = directory / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
    run = [sys.executable, "-s", "-c", ORACLE]
    done = subprocess.run(run, cwd=directory, capture_output=True, text=True, timeout=60)
    return done.returncode == 0 and "right" in done.stdout.splitlines()


def test_no_patch_earns_what_the_oracle_denies_and_no_right_one_goes_without(
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
        or (right and not each.hostile and not said.startswith("resolved"))
    ]
    assert not wrong, wrong[:2]
    assert any(said.startswith("resolved") for _, said in verdicts)
    assert any(each.hostile and right for each, (right, _) in zip(drawn_, verdicts, strict=True))
