"""Child programs that end with this process, however it ends, with their files in one folder."""

import os
import signal
import subprocess
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from rollcall.sandbox import process_tree


def run_child(
    argv: Sequence[str], scratch: Path, timeout_s: float | None = None
) -> "subprocess.CompletedProcess[str]":
    """Run a program with its temporary files in a folder; return its output, with stderr.

    It is killed when the calling thread ends. Raises OSError, subprocess.TimeoutExpired.
    """
    return subprocess.run(
        argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, errors="replace", check=False, timeout=timeout_s, umask=0o022,
        env={**os.environ, "TMPDIR": str(scratch)},
        preexec_fn=partial(process_tree.signal_on_parent_death, os.getpid(), signal.SIGKILL),
    )  # fmt: skip
