"""The paths whose changes in a patch are left out: tests and a runner's configuration. Pure."""

import re
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import PurePosixPath
from posixpath import join, normpath

from rollcall.sandbox.tasks.task_file import Verifier

FILES = (
    "conftest.py",
    "pytest.ini",
    ".pytest.ini",
    "pytest.toml",
    ".pytest.toml",
    "tox.ini",
    "setup.cfg",
    "pyproject.toml",
    "sitecustomize.py",
    "usercustomize.py",
    "*.pyc",
)
"""Files that configure Python or pytest, or run in place of a source, in any directory."""
FOLDERS = ("*.egg-info", "*.dist-info")
RUNNERS = ("pytest", "_pytest", "pluggy", "unittest")
"""Modules that would replace a runner if they were in the work directory itself."""
TESTS = ("test", "tests", "testing")
"""Names of folders that count as tests as a whole if the reference has tests in them."""


PROGRAM = re.compile(r"[^\s=;&|'\"()]*/bin/(?:python[\d.]*|pytest|py\.test)(?=[\s;&|)]|$)")
"""The path, in a command, of an interpreter or runner in an environment's `bin` folder."""


class Guarded:
    """The paths of one reference that a patch cannot change."""

    def __init__(self, verifier: Verifier, workdir: str, laid: frozenset[str]) -> None:
        self.python = verifier.parser in ("pytest", "unittest")
        """True if the tests are run by pytest or unittest."""
        self._replaced = verifier.replace
        tests = (*verifier.fail_to_pass, *verifier.pass_to_pass)
        self.test_files = {test.partition("::")[0] for test in tests if "::" in test}
        """The files in the names of tests."""
        folders = {folder for path in self.test_files for folder in _folder_of_tests(path)}
        self._kept = sorted(self.test_files | laid | folders)
        self._interpreter = _environment(verifier.command, workdir)

    def patterns(self) -> Iterator[str]:
        """Yield patterns for `git apply --exclude`, where `*` matches any characters, also `/`."""
        for path in (*self._replaced, *self._kept, *self._interpreter):
            plain = "".join(f"[{each}]" if each in "*?[" else each for each in path)
            yield from (plain, f"{plain}/*")
        if self.python:
            for name in FILES:
                yield from (name, f"*/{name}")
            for folder in FOLDERS:
                yield f"{folder}/*"
            for name in RUNNERS:
                yield from (f"{name}.py", f"{name}/*")

    def holds(self, path: str) -> bool:
        """Return True if a patch cannot change this path, given below the work directory."""
        return any(fnmatchcase(path, pattern) for pattern in self.patterns())


def _folder_of_tests(path: str) -> Iterator[str]:
    """Yield the outermost folder of tests above a test file, if there is one."""
    parts = PurePosixPath(path).parts[:-1]
    for number, part in enumerate(parts):
        if part in TESTS:
            yield "/".join(parts[: number + 1])
            return


def _environment(command: str, workdir: str) -> tuple[str, ...]:
    """Return the folders of environments in the tree whose programs run the tests."""
    places = {normpath(join(workdir, program)) for program in PROGRAM.findall(command)}
    below = {place[len(workdir) + 1 :] for place in places if place.startswith(f"{workdir}/")}
    return tuple(sorted({str(PurePosixPath(each).parents[1]) for each in below} - {"."}))
