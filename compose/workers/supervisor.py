"""A small supervisor: one process per worker, restarted when it dies, all ended together.

Children get their own session, so a Ctrl-C reaches the supervisor alone, which then ends them in
order; and they die with the supervisor, also when that is killed (PR_SET_PDEATHSIG).
"""

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from schemas.errors import Unfit

GRACE_S = 25.0
RESTART_S = 1.0
MAX_RESTARTS = 20
PR_SET_PDEATHSIG = 1

log = structlog.get_logger()


@dataclass
class Child:
    """One supervised worker."""

    name: str
    arguments: Sequence[str]
    log_path: Path
    process: subprocess.Popen[bytes] | None = None
    restarts: int = 0
    started: float = 0.0
    finished: bool = False
    """It ended with exit code 0 and is not wanted any more."""


@dataclass
class Supervisor:
    """Starts `rollcall worker …` processes and keeps them alive."""

    logs: Path
    environment: Mapping[str, str]
    children: dict[str, Child] = field(default_factory=dict)

    def start(self, name: str, *arguments: str) -> None:
        """Start one worker under a name of its own."""
        self.logs.mkdir(parents=True, exist_ok=True)
        child = Child(name, ["worker", *arguments, "--name", name], self.logs / f"{name}.log")
        self.children[name] = child
        self._spawn(child)

    def _spawn(self, child: Child) -> None:
        child.started = time.monotonic()
        with child.log_path.open("ab") as out:
            child.process = subprocess.Popen(
                [sys.executable, "-P", "-m", "compose.cli", *child.arguments],
                stdout=out,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                env={**os.environ, **self.environment},
                start_new_session=True,
                preexec_fn=die_with_parent,
            )

    def keep_alive(self) -> None:
        """Restart what has died; raises Unfit, with its last words, for one that keeps dying."""
        given_up = self._restart_dead()
        if given_up:
            words = self.last_words(given_up[0])
            msg = f"worker {given_up[0]} keeps dying; the end of its log:\n{words}"
            raise Unfit(msg)

    def _restart_dead(self) -> list[str]:
        """Restart what has died; return the names of those that gave up."""
        given_up = []
        for child in self.children.values():
            code = child.process.poll() if child.process else None
            if code is None or child.finished:
                continue
            if code == 0:
                child.finished = True
            elif child.restarts >= MAX_RESTARTS:
                given_up.append(child.name)
            elif time.monotonic() - child.started > RESTART_S:
                child.restarts += 1
                log.warning("worker_died", worker=child.name, exit_code=code)
                self._spawn(child)
        return given_up

    def pids(self) -> dict[str, int]:
        """The processes that live now."""
        return {
            child.name: child.process.pid
            for child in self.children.values()
            if child.process and child.process.poll() is None
        }

    def finished(self, name: str) -> bool:
        return self.children[name].finished

    def last_words(self, name: str, lines: int = 12) -> str:
        """The end of a worker's log."""
        text = self.children[name].log_path.read_text(errors="replace")
        return "\n".join(text.splitlines()[-lines:])

    def stop(self) -> None:
        """SIGTERM to all, some time to finish, then SIGKILL; nothing is left running."""
        alive = [
            c.process for c in self.children.values() if c.process and c.process.poll() is None
        ]
        for process in alive:
            process.send_signal(signal.SIGTERM)
        until = time.monotonic() + GRACE_S
        for process in alive:
            try:
                process.wait(max(0.1, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def die_with_parent() -> None:
    """What a child does between fork and exec."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def peak_rss_bytes(pids: Sequence[int]) -> int:
    """The sum of the processes' resident memory now, shared pages counted once each (PSS)."""
    return sum(_pss(pid) for pid in pids)


def _pss(pid: int) -> int:
    try:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    except OSError:
        return 0
    return 0
