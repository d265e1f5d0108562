"""`rollcall tasks`: its reports on tasks, and their exit codes."""

import json
from pathlib import Path

import pytest

from rollcall.sandbox.tasks.harbor import read_task
from rollcall.schemas.errors import Refused
from tests.support.command_line import call
from tests.support.pages import blocks
from tests.support.task_directories import TASK, write_task


def test_valid_tasks_are_listed_by_digest(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_task(tmp_path / "one")
    proven = TASK.replace("about =", "proven = true\nabout =")
    write_task(tmp_path / "two", {"instruction.md": "Another.", "task.toml": proven})

    call(None, "tasks", "check", str(tmp_path))
    heads, *rows = capsys.readouterr().out.splitlines()
    call(None, "tasks", "check", str(tmp_path / "one"), "--json")
    (found,) = json.loads(capsys.readouterr().out)

    assert heads.split() == ["task", "digest", "parser", "to", "mend", "to", "keep", "proven"]
    assert [row.split()[2:] for row in rows] == [
        ["unittest", "1", "1"],
        ["unittest", "1", "1", "yes"],
    ]
    assert rows[0].split()[1] == found["digest"][:16] == read_task(tmp_path / "one").digest[:16]


def test_each_task_error_is_a_line_and_exit_code_is_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_task(tmp_path / "good")
    bad = {"instruction.md": None, "task.toml": TASK.replace("parser", "praser")}
    write_task(tmp_path / "sums", bad)

    assert call(None, "tasks", "check", str(tmp_path)) == 1

    printed = capsys.readouterr().out
    assert f"{tmp_path}/sums/instruction.md: is missing\n" in printed
    assert "task.toml: verifier.praser is no key that is known here; did you mean" in printed
    assert printed.endswith("1 of 2 tasks cannot be used\n")


def test_path_without_a_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Refused, match=r"is no directory; a task is one that holds task\.toml"):
        call(None, "tasks", "check", str(tmp_path / "nothing"))


def test_documented_verifier_table_is_valid(tmp_path: Path) -> None:
    (table,) = blocks("toml", "sandbox/tasks/README.md")
    write_task(tmp_path / "sums", {"task.toml": table})

    assert read_task(tmp_path / "sums").file.verifier.replace == ("tests",)
