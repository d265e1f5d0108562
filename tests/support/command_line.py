"""The command line, called as a function or run as a process of its own."""

import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from rollcall.compose.cli.app import app
from rollcall.compose.cluster import Cluster

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
IMPORTED = [
    "rollcall.compose.cli.app",
    "rollcall.compose.workers.worker_factory",
    "rollcall.compose.workers.readiness",
    "rollcall.compose.workers.shutdown",
    "rollcall.consumers.agents.worker",
    "rollcall.consumers.environments.environments",
    "rollcall.consumers.environments.worker_hosts",
    "rollcall.consumers.models.server",
    "rollcall.consumers.rewards.rewards",
    "rollcall.inference.text_script",
    "rollcall.sandbox.agents.agent_processes",
]
"""Most of the second that a command or a worker needs before it begins; nothing with an extra."""
LONGEST_S = 90


class Command:
    """A command in a process of its own, forked from one that has imported what most need.

    What an interpreter reads when it starts, `afresh` shows.
    """

    def __init__(
        self,
        words: Sequence[str],
        *,
        cwd: Path,
        environment: Mapping[str, str],
        out: Path,
        err: Path,
        stdin: Path = Path(os.devnull),
    ) -> None:
        FORKS.set_forkserver_preload(IMPORTED)
        self.words = words
        arguments = (words, cwd, dict(environment), (stdin, out, err))
        self._process = FORKS.Process(target=_command, args=arguments)
        self._process.start()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    def poll(self) -> int | None:
        """Its exit code; None while it runs."""
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def wait(self, timeout_s: float) -> int:
        self._process.join(timeout_s)
        code = self.poll()
        if code is None:
            raise subprocess.TimeoutExpired(self.words, timeout_s)
        return code


def rollcall(
    *words: str, cwd: Path, stdin: str = "", **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    with TemporaryDirectory() as scratch:
        given, out, err = (Path(scratch) / name for name in ("stdin", "stdout", "stderr"))
        given.write_text(stdin)
        environment = {**_environment(), **variables}
        command = Command(words, cwd=cwd, environment=environment, out=out, err=err, stdin=given)
        try:
            code = command.wait(LONGEST_S)
        except subprocess.TimeoutExpired as late:
            command.kill()
            command.wait(LONGEST_S)
            late.output, late.stderr = out.read_text(), err.read_text()
            raise
        return subprocess.CompletedProcess(words, code, out.read_text(), err.read_text())


def _command(
    words: Sequence[str], cwd: Path, environment: dict[str, str], streams: Sequence[Path]
) -> None:
    """What the forked process does."""
    for number, stream in enumerate(streams):
        opened = os.open(stream, os.O_RDWR | os.O_CREAT | (os.O_APPEND if number else 0))
        os.dup2(opened, number)
        os.close(opened)
    # It lives as long as the process.
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = ["rollcall", *words]
    from rollcall.compose.cli.app import main

    main()


def afresh(*words: str, cwd: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a command in an interpreter of its own, from its first line on."""
    return subprocess.run(
        [sys.executable, "-P", "-m", "rollcall.compose.cli", *words],
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
