"""The package index, accessed by the pip of the running Python: so the user's configuration of
mirrors, certificates and proxies applies. Its child programs end with this process, however it
ends, with their files in one folder.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from rollcall.sandbox import process_tree
from rollcall.schemas.errors import Refused, Unavailable


def run_child(
    argv: Sequence[str], scratch: Path, timeout_s: float | None = None
) -> "subprocess.CompletedProcess[str]":
    """Run a program with its temporary files in a folder; return its output, with stderr.

    It is killed when the calling thread ends. Raises OSError, subprocess.TimeoutExpired.
    """
    return subprocess.run(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
        timeout=timeout_s,
        umask=0o022,
        env={**os.environ, "TMPDIR": str(scratch)},
        preexec_fn=partial(process_tree.signal_on_parent_death, os.getpid(), signal.SIGKILL),
    )


PIP = ("-m", "pip", "--disable-pip-version-check", "--no-input")
QUIETLY = ("--quiet", "--retries", "2", "--timeout", "30")
AWAY = ("connection broken", "ConnectionError", "ProxyError", "Max retries exceeded")
LONGEST_S = 900.0


def pip(command: str, *arguments: str, what: str, scratch: Path) -> tuple[int, str]:
    """Run pip to fetch `what`; return its exit code and output. Raises Unavailable.

    Its temporary files are in `scratch`, also those of a killed pip.
    """
    argv = [sys.executable, *PIP, command, *arguments]
    try:
        done = run_child(argv, scratch, LONGEST_S)
    except subprocess.TimeoutExpired as error:
        msg = f"{what} cannot be fetched: pip takes more than {LONGEST_S:g} s"
        raise Unavailable(msg) from error
    return done.returncode, done.stdout


def refuse_without_index(what: str, said: str) -> None:
    """Raise Refused if there is no pip, Unavailable if it reached no index."""
    if "No module named pip" in said:
        msg = f"releases are fetched by pip, which {sys.executable} lacks; run `-m ensurepip` on it"
        raise Refused(msg)
    if any(words in said for words in AWAY):
        msg = (
            f"{what} cannot be fetched: the package index does not answer; look at network, "
            "proxy and `pip config list`, and run the command again"
        )
        raise Unavailable(msg)


def last_error(said: str) -> str:
    """Return the line of a failed pip's output that states the error."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    wrong = [line for line in lines if line.lower().startswith("error")]
    last: Sequence[str] = [*lines, *wrong] or ["pip is silent"]
    return last[-1][:500]
