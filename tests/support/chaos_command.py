"""`rollcall chaos` as a process of its own."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.broker import users_cache
from tests.support.command_line import ROOT


@contextmanager
def chaos(*words: str, cwd: Path) -> Iterator[subprocess.Popen[str]]:
    """Run the command; whatever becomes of the test, it takes its processes down."""
    with subprocess.Popen(
        [sys.executable, "-m", "rollcall.compose.cli", "chaos", *words],
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "ROLLCALL_CACHE_DIR": str(users_cache()),
            "TMPDIR": str(cwd),
        },
    ) as run:
        try:
            yield run
        finally:
            run.send_signal(signal.SIGINT)
            run.communicate()
