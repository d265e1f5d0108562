"""Which changes of a patch are left out: to tests, and to what tells a runner how to run. Pure."""

import re
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import PurePosixPath
from posixpath import join, normpath

from sandbox.tasks.verifier import Verifier

FILES = (
    "conftest.py", "pytest.ini", ".pytest.ini", "pytest.toml", ".pytest.toml", "tox.ini",
    "setup.cfg", "pyproject.toml", "sitecustomize.py", "usercustomize.py", "*.pyc",
)  # fmt: skip
"""Files that tell Python or pytest how to run, or run in place of a source, wherever they lie."""
FOLDERS = ("*.egg-info", "*.dist-info")
RUNNERS = ("pytest", "_pytest", "pluggy", "unittest")
"""Modules that stand in for a runner where they lie in the work directory itself."""
TESTS = ("test", "tests", "testing")
"""Folders that hold nothing but tests, where the reference has some in them."""


PROGRAM = re.compile(r"[^\s=;&|'\"()]*/bin/(?:python[\d.]*|pytest|py\.test)(?=[\s;&|)]|$)")
"""In a command, an interpreter or a runner that lies as those of environments do."""


class Guarded:
    """The paths of one reference that a patch has no say about."""

    def __init__(self, verifier: Verifier, workdir: str, laid: frozenset[str]) -> None:
        self.python = verifier.parser in ("pytest", "unittest")
        """Whether Python runs the tests."""
        self._replaced = verifier.replace
        tests = (*verifier.fail_to_pass, *verifier.pass_to_pass)
        self.test_files = {test.partition("::")[0] for test in tests if "::" in test}
        """Those that tests are named by."""
        folders = {folder for path in self.test_files for folder in _folder_of_tests(path)}
        self._kept = sorted(self.test_files | laid | folders)
        self._interpreter = _environment(verifier.command, workdir)

    def patterns(self) -> Iterator[str]:
        """For `git apply --exclude`: `*` stands for any characters there, also for `/`."""
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
        """Whether a path below the work directory is one that a patch cannot change."""
        return any(fnmatchcase(path, pattern) for pattern in self.patterns())


def _folder_of_tests(path: str) -> Iterator[str]:
    """The outermost folder of tests that a test file lies in, if there is one."""
    parts = PurePosixPath(path).parts[:-1]
    for number, part in enumerate(parts):
        if part in TESTS:
            yield "/".join(parts[: number + 1])
            return


def _environment(command: str, workdir: str) -> tuple[str, ...]:
    """The folders of environments whose programs run the tests, where they lie in the tree."""
    places = {normpath(join(workdir, program)) for program in PROGRAM.findall(command)}
    below = {place[len(workdir) + 1 :] for place in places if place.startswith(f"{workdir}/")}
    return tuple(sorted({str(PurePosixPath(each).parents[1]) for each in below} - {"."}))
