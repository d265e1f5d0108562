"""A small supervisor: one process per worker, restarted when it dies, all ended together.

A worker that dies too often within an hour, or refuses its input repeatedly, ends the run.

A Ctrl-C reaches only the supervisor, which then ends the workers in order; they also die with it if
it is killed.
"""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from rollcall.compose.processes import ChildProcess, end, module, spawn
from rollcall.schemas.errors import Unfit
from rollcall.schemas.private_folders import make_private

GRACE_S = 25.0
RESTART_S = 1.0
MAX_RESTARTS = 20
WINDOW_S = 3600.0
"""The window in which deaths are counted, so a run of weeks survives a kill every few hours."""
HEALTHY_S = 1800.0
"""The lifetime after which earlier refusals of a worker do not count."""
REFUSED = 2
"""The exit code of a worker that refuses its input."""
MAX_REFUSALS = 3
"""The most refusals in a row: the input rarely changes, but a file may still arrive."""

log = structlog.get_logger()


@dataclass
class Child:
    """One supervised worker."""

    name: str
    arguments: Sequence[str]
    log_path: Path
    process: ChildProcess | None = None
    deaths: list[float] = field(default_factory=list)
    """The times of its restarts within the window."""
    refusals: int = 0
    """The refusals in a row until now."""
    started: float = 0.0
    finished: bool = False
    """True if it ended with exit code 0 and is not restarted."""

    def hopeless(self, now: float, code: int) -> bool:
        """Return True if it must not be restarted after ending with this exit code."""
        self.deaths = [died for died in self.deaths if now - died < WINDOW_S]
        if now - self.started >= HEALTHY_S or code != REFUSED:
            self.refusals = 0
        return len(self.deaths) >= MAX_RESTARTS or self.refusals >= MAX_REFUSALS

    def died(self, now: float, code: int) -> None:
        """Count one more death."""
        self.deaths.append(now)
        self.refusals += code == REFUSED


@dataclass
class Supervisor:
    """A supervisor that starts `rollcall worker …` processes and keeps them alive."""

    logs: Path
    environment: Mapping[str, str]
    models_python: str = ""
    """The Python of the model servers; empty for our own."""
    children: dict[str, Child] = field(default_factory=dict)
    clock: Callable[[], float] = time.monotonic

    def start(self, name: str, *arguments: str) -> None:
        """Start one worker under a unique name."""
        make_private(self.logs)
        child = Child(name, ["worker", *arguments, "--name", name], self.logs / f"{name}.log")
        self.children[name] = child
        self._spawn(child)

    def _spawn(self, child: Child) -> None:
        child.started = self.clock()
        environment = {**os.environ, **self.environment}
        python = self.models_python if child.arguments[1] == "models" else ""
        command = module("rollcall.compose.cli", *child.arguments, python=python)
        child.process = spawn(command, child.log_path, environment=environment)

    def keep_alive(self) -> None:
        """Restart dead workers; raises Unfit, with the end of its log, for one that keeps dying."""
        given_up = self._restart_dead()
        if given_up:
            words = self.last_words(given_up[0])
            msg = f"worker {given_up[0]} keeps dying; the end of its log:\n{words}"
            raise Unfit(msg)

    def _restart_dead(self) -> list[str]:
        """Restart dead workers; return the names of those that are hopeless."""
        given_up, now = [], self.clock()
        for child in self.children.values():
            code = child.process.poll() if child.process else None
            if code is None or child.finished:
                continue
            if code == 0:
                child.finished = True
            elif child.hopeless(now, code):
                given_up.append(child.name)
            elif now - child.started > RESTART_S:
                child.died(now, code)
                log.warning("worker_died", worker=child.name, exit_code=code)
                self._spawn(child)
        return given_up

    def pids(self) -> dict[str, int]:
        """Return the pids of the running workers by name."""
        return {
            child.name: child.process.pid
            for child in self.children.values()
            if child.process and child.process.poll() is None
        }

    def finished(self, name: str) -> bool:
        return self.children[name].finished

    def last_words(self, name: str, lines: int = 12) -> str:
        """Return the end of a worker's log."""
        text = self.children[name].log_path.read_text(errors="replace")
        return "\n".join(text.splitlines()[-lines:])

    def stop(self) -> None:
        """End all: SIGTERM, a grace period, then SIGKILL."""
        end([child.process for child in self.children.values() if child.process], GRACE_S)
