"""A made-up package with a bug, the tests that show it, and patches to it."""

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from rollcall.sandbox.boxes.tar_streams import of_files
from rollcall.sandbox.grading.reference import Reference
from rollcall.sandbox.tasks.task_file import Verifier

Files = Mapping[str, str]
BASE: Files = {
    "tiny/__init__.py": "from tiny.sums import add\n",
    "tiny/sums.py": "def add(a, b):\n    return a - b\n\n\ndef same(a):\n    return a\n",
    "tests/test_sums.py": (
        "from tiny.sums import same\n\n\ndef test_same():\n    assert same(3) == 3\n"
    ),
    "conftest.py": "",
    "setup.cfg": "[tool:pytest]\naddopts = --strict-markers\n",
    "data.bin": "\0\1\2",
}
TESTS: Files = {
    "tests/test_sums.py": (
        "import unittest\n\nimport pytest\n\nfrom tiny.sums import add, same\n\n\n"
        "def test_adds():\n    assert add(2, 3) == 5\n\n\n"
        "@pytest.mark.parametrize('n', [1, 'a b'])\n"
        "def test_same(n):\n    assert same(n) == n\n\n\n"
        "@pytest.mark.xfail\ndef test_not_yet():\n    assert same(1) == 2\n\n\n"
        "class SumsTest(unittest.TestCase):\n"
        "    def test_zero(self):\n        self.assertEqual(add(0, 0), 0)\n"
    ),
}
FIXED = BASE["tiny/sums.py"].replace("a - b", "a + b")
FAIL_TO_PASS = ("tests/test_sums.py::test_adds",)
PASS_TO_PASS = (
    "tests/test_sums.py::test_same[1]",
    "tests/test_sums.py::test_same[a b]",
    "tests/test_sums.py::test_not_yet",
    "tests/test_sums.py::SumsTest::test_zero",
)


def tar_of(files: Files) -> bytes:
    return of_files({name: text.encode() for name, text in files.items()})


def verifier(**fields: object) -> Verifier:
    given = {
        "command": f"PYTHONPATH=. {sys.executable} -m pytest -q -rA tests",
        "env": {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},  # they take longer than all the rest
        "parser": "pytest",
        "timeout_sec": 120.0,
        "replace": ("tests",),
        "fail_to_pass": FAIL_TO_PASS,
        "pass_to_pass": PASS_TO_PASS,
    }
    return Verifier.model_validate({**given, **fields})


def reference(**fields: object) -> Reference:
    return Reference(verifier(**fields), tests=tar_of(TESTS), base=tar_of(BASE))


def write_task(directory: Path) -> Path:
    """The package as a task on disk."""
    files = {f"environment/testbed/{name}": text for name, text in BASE.items()}
    files |= {f"tests/testbed/{name}": text for name, text in TESTS.items()}
    files["instruction.md"] = "Mend add."
    listed = ", ".join(json.dumps(test) for test in PASS_TO_PASS)
    files["task.toml"] = (
        f'[verifier]\ncommand = "{sys.executable} -m pytest -q tests"\nparser = "pytest"\n'
        'replace = ["tests"]\nenv = { PYTEST_DISABLE_PLUGIN_AUTOLOAD = "1" }\n'
        f'fail_to_pass = ["{FAIL_TO_PASS[0]}"]\npass_to_pass = [{listed}]\n'
    )
    for name, text in files.items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_text(text)
    return directory


class Patches:
    """Makes patches to the package by git, in a directory of its own."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        directory.mkdir()
        self._git("init", "-q")
        for name, text in BASE.items():
            self._write(name, text)
        self._git("add", "-A", "-f")
        self._git("-c", "user.name=t", "-c", "user.email=t@t", "commit", "-qm", "base")

    def of(self, files: Files, *, without: tuple[str, ...] = ()) -> bytes:
        """The patch that writes these files, and removes others."""
        for name, text in files.items():
            self._write(name, text)
        for name in without:
            (self.directory / name).unlink()
        return self.made()

    def made(self) -> bytes:
        """The patch to what the directory holds now; then it is as at the start."""
        self._git("add", "-A", "-f")
        patch = self._git("diff", "--binary", "--cached", "HEAD")
        self._git("reset", "-q", "--hard", "HEAD")
        self._git("clean", "-fdxq")
        return patch

    def gold(self) -> bytes:
        return self.of({"tiny/sums.py": FIXED})

    def _write(self, name: str, text: str) -> None:
        path = self.directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def _git(self, *words: str) -> bytes:
        return subprocess.run(
            ["git", *words], cwd=self.directory, capture_output=True, check=True
        ).stdout
