"""Commands that run pytest are split into their parts."""

import pytest

from rollcall.sandbox.grading.witness_plan import pytest_command


def test_pytest_command_is_split_into_its_parts() -> None:
    command = pytest_command(
        "PYTHONPATH=src:. python3 -m pytest -q -x --maxfail=1 -rA -p no:cacheprovider -o addopts= "
        "-W ignore 'tests/a b'"
    )

    assert command is not None
    assert command.interpreter == "python3"
    assert command.argv == (
        "-q", "-rA", "-p", "no:cacheprovider", "-o", "addopts=", "-W", "ignore", "tests/a b",
    )  # fmt: skip
    assert command.search("/w") == ["/w/src", "/w"]


def test_pytest_alone_does_not_find_the_work_directory() -> None:
    command = pytest_command("pytest -q -W ignore")

    assert command is not None
    assert (command.interpreter, command.search("/w")) == ("python3", [])


@pytest.mark.parametrize(
    "command",
    [
        "cd src && pytest", "pytest | tee log", "pytest $TESTS", "pytest tests/*", "pytest 'a",
        "make test", "python3 -m unittest -v", "sh -c pytest", "", "A=1", "./python3.sh -m pytest",
        "pytest; true", "pytest `cat tests`", "pytest ~/tests", "pytest tests # all",
    ],
)  # fmt: skip
def test_command_that_needs_a_shell_is_not_parsed(command: str) -> None:
    assert pytest_command(command) is None
