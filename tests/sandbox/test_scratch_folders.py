"""Scratch folders of a killed process are removed by the next one, and its programs end."""

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from rollcall.sandbox.locked_folder import scratch_folder
from tests.support.command_line import ROOT
from tests.support.waiting import until

HOLDER = """
import sys
from pathlib import Path
from rollcall.sandbox.locked_folder import scratch_folder
from rollcall.sandbox.package_index import run_child
with scratch_folder("test") as folder:
    (folder / "large").write_text("x" * 1000)
    print(folder, flush=True)
    run_child(["sh", "-c", "mktemp; exec sleep 600", sys.argv[1]], folder)
"""


def test_next_holder_removes_scratch_folders_of_a_killed_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)

    # Given two processes, each with a program that writes a temporary file
    held = [
        subprocess.Popen(
            [sys.executable, "-c", HOLDER, "x"], stdout=subprocess.PIPE, text=True, cwd=ROOT
        )
        for _ in range(2)
    ]
    folders = [Path(each.stdout.readline().strip()) for each in held if each.stdout]
    until(
        lambda: all(len(list(folder.iterdir())) == 2 for folder in folders),
        20,
        lambda: f"{folders} hold {[list(folder.iterdir()) for folder in folders]}",
    )
    programs = [each for holder in held for each in children(holder.pid)]
    assert len(programs) == 2

    # When one is killed
    held[0].kill()
    held[0].wait(20)
    until(lambda: not Path(f"/proc/{programs[0]}").exists(), 20, lambda: "its program runs on")

    # Then the next one removes what it left, and only that
    with scratch_folder("test") as mine:
        assert not folders[0].exists()
        assert folders[1].exists()
        assert mine.stat().st_mode & 0o777 == 0o700
    assert not mine.exists()
    held[1].kill()
    held[1].wait(20)
    for each in held:
        assert each.stdout
        each.stdout.close()


def children(pid: int) -> list[int]:
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_scratch_folder_of_another_user_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with scratch_folder("test") as folder:
        above = folder.parent
    above.rmdir()
    (tmp_path / "elsewhere").mkdir()
    above.symlink_to(tmp_path / "elsewhere")

    with pytest.raises(PermissionError, match="is another user's"), scratch_folder("test"):
        pass
