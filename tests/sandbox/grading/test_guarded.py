"""Paths that a patch cannot change."""

import pytest

from rollcall.sandbox.grading.guarded import Guarded
from rollcall.sandbox.tasks.task_file import Verifier


def guarded(command: str = "python -m pytest tests", parser: str = "pytest") -> Guarded:
    named = ("src/app/tests/unit/test_a.py::test_one", "checks/test_b.py::test_two")
    verifier = Verifier(
        command=command, parser=parser, replace=("data",), fail_to_pass=named, pass_to_pass=()
    )
    return Guarded(verifier, "/testbed", frozenset({"checks/given.json"}))


@pytest.mark.parametrize(
    "path",
    [
        "data/x.json", "data", "checks/test_b.py", "checks/given.json", "src/app/tests/helper.py",
        "src/app/tests/unit/data/golden.txt", "conftest.py", "src/conftest.py", "setup.cfg",
        "src/app/__pycache__/core.cpython-311.pyc", "pytest.py", "unittest/__init__.py",
        "_pytest/runner.py", "app.dist-info/entry_points.txt",
    ],
)  # fmt: skip
def test_tests_their_data_and_runner_configuration_are_guarded(path: str) -> None:
    assert guarded().holds(path)


@pytest.mark.parametrize(
    "path",
    ["src/app/core.py", "checks/helper.py", "src/pytest.py", "src/app/testing.py", "database.py",
     "src/testing/app.py", ".venv/lib/x.py"],
)  # fmt: skip
def test_other_files_may_be_changed_by_the_patch(path: str) -> None:
    assert not guarded().holds(path)


@pytest.mark.parametrize(
    "command",
    [".venv/bin/python -m pytest tests", "/testbed/.venv/bin/python3 -m pytest",
     ".venv/bin/pytest tests; true", "cd . && PYTHONPATH=. ./.venv/bin/python -m pytest"],
)  # fmt: skip
def test_virtual_environment_that_runs_the_tests_is_guarded(command: str) -> None:
    assert guarded(command).holds(".venv/lib/python3.11/site-packages/evil.pth")
    assert not guarded(command).holds("src/app/core.py")


def test_python_configuration_is_not_guarded_for_other_runners() -> None:
    assert not guarded("go test ./...", "go-test").holds("setup.cfg")
    assert guarded("go test ./...", "go-test").holds("data/x.json")
