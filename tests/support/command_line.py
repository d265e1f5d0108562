"""The command line, called as a function or run as a process of its own."""

import multiprocessing
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from compose.cli.app import app
from compose.cluster import Cluster

ROOT = Path(__file__).parents[2]


def call(cluster: object, *words: str) -> object:
    """One command on a cluster that is handed over; its errors come out as they are."""
    return app(list(words), obj=cluster, standalone_mode=False)


def options(**values: object) -> list[str]:
    """Values as words of the command line; what is False, None or empty is left out."""
    words: list[str] = []
    for name, value in values.items():
        option = f"--{name.replace('_', '-')}"
        if value is True:
            words.append(option)
        elif value is not None and value is not False and value != "":
            words.append(f"{option}={value}")
    return words


FORKS = multiprocessing.get_context("forkserver")
LONGEST_S = 90


def rollcall(
    *words: str, cwd: Path, stdin: str = "", **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run a command; what an interpreter reads when it starts, `afresh` shows."""
    FORKS.set_forkserver_preload(["compose.cli.app"])
    with TemporaryDirectory() as scratch:
        streams = [Path(scratch) / name for name in ("stdin", "stdout", "stderr")]
        streams[0].write_text(stdin)
        arguments = (words, cwd, {**_environment(), **variables}, streams)
        process = FORKS.Process(target=_command, args=arguments)
        process.start()
        process.join(LONGEST_S)
        if process.exitcode is None:
            process.kill()
            process.join()
            raise subprocess.TimeoutExpired(words, LONGEST_S, *map(Path.read_text, streams[1:]))
        out, err = (stream.read_text() for stream in streams[1:])
        return subprocess.CompletedProcess(words, process.exitcode, out, err)


def _command(
    words: Sequence[str], cwd: Path, environment: dict[str, str], streams: Sequence[Path]
) -> None:
    """What the forked process does."""
    for number, stream in enumerate(streams):
        opened = os.open(stream, os.O_RDWR | os.O_CREAT)
        os.dup2(opened, number)
        os.close(opened)
    # It lives as long as the process.
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = ["rollcall", *words]
    from compose.cli.app import main

    main()


def afresh(*words: str, cwd: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a command in an interpreter of its own, from its first line on."""
    return subprocess.run(
        [sys.executable, "-P", "-m", "compose.cli", *words],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=LONGEST_S,
        check=False,
        env={**_environment(), "PYTHONPATH": str(ROOT), **variables},
    )


def _environment() -> dict[str, str]:
    """Ours, without what was set for rollcall."""
    return {name: value for name, value in os.environ.items() if "ROLLCALL" not in name}


def refused(done: subprocess.CompletedProcess[str]) -> str:
    """The one line with which a command was refused."""
    assert done.returncode == 2, done.stderr
    assert done.stderr.count("\n") == 1, done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr


def addresses(cluster: Cluster) -> dict[str, str]:
    return {**cluster.environment(), "ROLLCALL_PREFIX": cluster.settings.prefix}
