"""The command line, called as a function or run as a process of its own."""

import os
import subprocess
import sys
from pathlib import Path

from compose.cli.app import app
from compose.cluster import Cluster

ROOT = Path(__file__).parents[2]


def call(cluster: object, *words: str) -> object:
    """One command on a cluster that is handed over; its errors come out as they are."""
    return app(list(words), obj=cluster, standalone_mode=False)


def options(**values: object) -> list[str]:
    """Values as words of the command line; what is false or empty is left out."""
    words: list[str] = []
    for name, value in values.items():
        option = f"--{name.replace('_', '-')}"
        words += [option] if value is True else [f"{option}={value}"] if value else []
    return words


def rollcall(
    *words: str, cwd: Path, stdin: str = "", **variables: str
) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if "ROLLCALL" not in name}
    return subprocess.run(
        [sys.executable, "-P", "-m", "compose.cli", *words],
        cwd=cwd,
        input=stdin,
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
        env={**environment, "PYTHONPATH": str(ROOT), **variables},
    )


def refused(done: subprocess.CompletedProcess[str]) -> str:
    """The one line with which a command was refused."""
    assert done.returncode == 2, done.stderr
    assert done.stderr.count("\n") == 1, done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr


def addresses(cluster: Cluster) -> dict[str, str]:
    return {**cluster.environment(), "ROLLCALL_PREFIX": cluster.settings.prefix}
