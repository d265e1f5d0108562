"""A small task as a directory: a function to mend, and the tests that say when it is."""

import textwrap
from collections.abc import Mapping
from pathlib import Path

TASK = """\
version = "1.0"

[metadata]
about = "a sum that subtracts"

[environment]
memory_mb = 512

[verifier]
command = "python3 -m unittest -v tests.test_sums"
parser = "unittest"
replace = ["tests"]
fail_to_pass = ["tests.test_sums.Sums.test_adds"]
pass_to_pass = ["tests.test_sums.Sums.test_keeps_zero"]
"""
WRONG = "def add(a, b):\n    return a - b\n"
RIGHT = "def add(a, b):\n    return a + b\n"
TESTS = """\
import unittest

from sums import add


class Sums(unittest.TestCase):
    def test_adds(self):
        self.assertEqual(add(2, 3), 5)

    def test_keeps_zero(self):
        self.assertEqual(add(0, 0), 0)
"""
GOLD = textwrap.dedent("""\
    diff --git a/sums.py b/sums.py
    --- a/sums.py
    +++ b/sums.py
    @@ -1,2 +1,2 @@
     def add(a, b):
    -    return a - b
    +    return a + b
    """)
FILES: Mapping[str, str] = {
    "task.toml": TASK,
    "instruction.md": "Mend `add` in sums.py, which subtracts.\n",
    "environment/testbed/sums.py": WRONG,
    "environment/testbed/tests/__init__.py": "",
    "tests/testbed/tests/__init__.py": "",
    "tests/testbed/tests/test_sums.py": TESTS,
    "solution/gold.patch": GOLD,
}


def write_task(directory: Path, changes: Mapping[str, str | None] | None = None) -> Path:
    """Write the task, with other contents of some files, or without them where that is None."""
    for name, content in {**FILES, **(changes or {})}.items():
        if content is not None:
            path = directory / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content)
    return directory
