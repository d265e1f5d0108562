"""The package index, asked by its ordinary client: the pip of the Python that runs this.

So whatever the user's configuration says of mirrors, certificates and proxies is heeded.
"""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from sandbox.tied_programs import run_tied
from schemas.errors import Refused, Unavailable

PIP = ("-m", "pip", "--disable-pip-version-check", "--no-input")
QUIETLY = ("--quiet", "--retries", "2", "--timeout", "30")
AWAY = ("connection broken", "ConnectionError", "ProxyError", "Max retries exceeded")
LONGEST_S = 900.0


def pip(command: str, *arguments: str, what: str, scratch: Path) -> tuple[int, str]:
    """The exit code and the words of one command; `what` is fetched. Raises Unavailable.

    Its temporary files are in `scratch`, where a killed one leaves them.
    """
    argv = [sys.executable, *PIP, command, *arguments]
    try:
        done = run_tied(argv, scratch, LONGEST_S)
    except subprocess.TimeoutExpired as error:
        msg = f"{what} cannot be fetched: pip takes more than {LONGEST_S:g} s"
        raise Unavailable(msg) from error
    return done.returncode, done.stdout


def refuse_without_index(what: str, said: str) -> None:
    """Raise Refused where there is no pip, Unavailable where it reached no index."""
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
    """The line of what a pip that failed has said which says why."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    wrong = [line for line in lines if line.lower().startswith("error")]
    last: Sequence[str] = [*lines, *wrong] or ["pip is silent"]
    return last[-1][:500]
