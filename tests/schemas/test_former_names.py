"""Imports by the names that our modules had before 0.2.0 give today's modules."""

import subprocess
import sys
from pathlib import Path

import pytest

from rollcall.schemas.former_names import FORMER, MOVED
from tests.support.command_line import ROOT

PROGRAM = """
from schemas.messages import Message
from consumers.agents import programs
from consumers.agents.wishes import Finish
import rollcall, trainer.samples
from rollcall.schemas.names import load
def same(task):
    assert Message is rollcall.Message
    assert Finish is rollcall.Finish
    assert trainer.samples.Sample is rollcall.Sample
    assert programs is __import__("rollcall.consumers.agents.programs", fromlist=["programs"])
    assert programs.__spec__.name == programs.__name__ == "rollcall.consumers.agents.programs"
"""
LOAD = "from rollcall.schemas.names import load; load('program', 'recorded:same')(None)"


def runs(code: str, place: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=place, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("path", ["", str(ROOT)], ids=["installed", "checkout_on_the_path"])
def test_recorded_program_loads_by_former_names(
    tmp_path: Path, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", path)
    (tmp_path / "recorded.py").write_text(PROGRAM)

    runs(LOAD, tmp_path)


def test_modules_of_the_user_come_before_former_names(tmp_path: Path) -> None:
    (tmp_path / "schemas").mkdir()
    (tmp_path / "schemas" / "__init__.py").write_text("")
    (tmp_path / "schemas" / "messages.py").write_text("MINE = 1\n")
    (tmp_path / "trainer.py").write_text("MINE = 2\n")
    (tmp_path / "recorded.py").write_text(
        "from schemas.messages import MINE as one\n"
        "from trainer import MINE as two\n"
        "def same(task):\n    assert (one, two) == (1, 2)\n"
    )

    runs(LOAD, tmp_path)


def test_every_moved_module_exists() -> None:
    for former, new in MOVED.items():
        assert former.partition(".")[0] in FORMER
        assert (ROOT / f"{new.replace('.', '/')}.py").is_file()
        assert not (ROOT / f"{former.replace('.', '/')}.py").exists()
