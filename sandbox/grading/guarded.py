"""Which changes of a patch are left out: to tests, and to what tells a runner how to run. Pure."""

from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import PurePosixPath
from posixpath import normpath

from sandbox.grading.pytest_command import pytest_command
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


class Guarded:
    """The paths of one reference that a patch has no say about."""

    def __init__(self, verifier: Verifier, workdir: str, laid: frozenset[str]) -> None:
        self.python = verifier.parser in ("pytest", "unittest")
        """Whether Python runs the tests."""
        self._replaced = verifier.replace
        named = {test.partition("::")[0] for test in _tests(verifier) if "::" in test}
        folders = {folder for path in named for folder in _folder_of_tests(path)}
        self._kept = sorted(named | laid | folders)
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


def _tests(verifier: Verifier) -> tuple[str, ...]:
    return (*verifier.fail_to_pass, *verifier.pass_to_pass)


def _folder_of_tests(path: str) -> Iterator[str]:
    """The outermost folder of tests that a test file lies in, if there is one."""
    parts = PurePosixPath(path).parts[:-1]
    for number, part in enumerate(parts):
        if part in TESTS:
            yield "/".join(parts[: number + 1])
            return


def _environment(command: str, workdir: str) -> tuple[str, ...]:
    """The folder of the interpreter that runs the tests, where it lies in the tree."""
    run = pytest_command(command)
    program = run.interpreter if run else command.split()[0]
    place = normpath(f"{workdir}/{program}" if not program.startswith("/") else program)
    below = place.removeprefix(f"{workdir}/")
    folder = str(PurePosixPath(below).parent.parent)
    return (folder,) if "/" in program and below != place and folder != "." else ()
