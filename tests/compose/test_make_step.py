"""One line for each step of `make demo`; the whole output where a step fails."""

import os
import pty
import subprocess
import sys
from pathlib import Path

from tests.support.command_line import ROOT

STEP = [sys.executable, str(ROOT / "compose" / "make_step.py"), "packages"]


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*STEP, *command], capture_output=True, text=True, check=False)


def test_a_step_that_succeeds_prints_one_line_with_its_seconds() -> None:
    done = run("sh", "-c", "echo noise; echo warning >&2")

    assert done.returncode == 0
    assert done.stderr == ""
    [line] = done.stdout.splitlines()
    assert line.startswith("packages ")
    assert line.endswith(" s")


def test_a_step_that_fails_prints_all_output_and_keeps_the_exit_code() -> None:
    done = run("sh", "-c", "seq 3000; echo error: no such package >&2; exit 3")

    assert done.returncode == 3
    told, *output = done.stderr.splitlines()
    assert told.endswith("failed with exit code 3:")
    assert output == [*map(str, range(1, 3001)), "error: no such package"]


def test_a_terminal_shows_the_last_line_while_a_step_runs(tmp_path: Path) -> None:
    # Given a step that waits until its last line was shown
    ours, theirs = pty.openpty()
    go_on = tmp_path / "go on"
    os.mkfifo(go_on)
    command = ["sh", "-c", f"echo Collecting torch; cat '{go_on}'"]
    with subprocess.Popen([*STEP, *command], stdout=theirs, stderr=theirs) as step:
        os.close(theirs)
        shown = b""
        while b"Collecting torch" not in shown:
            shown += os.read(ours, 1000)

        # When it ends
        go_on.write_text("done")
        while not shown.endswith(b" s\r\n"):
            shown += os.read(ours, 1000)
    os.close(ours)

    # Then one line is left, without that text
    assert step.returncode == 0
    assert b"Collecting torch" not in shown.rpartition(b"\r\x1b[K")[2]
