"""The victims of faults: processes, their start, faults and recovery.

A killed worker is restarted at once under its name; a broker or registry after a while, on its old
ports and data. A process that dies by itself is restarted too, and recorded.
"""

import json
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from rollcall.compose.chaos.faults import (
    CLOCK,
    CUT_REGISTRY,
    CUT_TO_BROKER,
    CUT_TO_CLIENT,
    FLAP,
    KILL,
    PAUSE,
    SET_BACK_S,
    Fault,
)
from rollcall.compose.chaos.other_release import name_in
from rollcall.compose.chaos.proxy import Proxy
from rollcall.compose.chaos.wall_clock import WallClock
from rollcall.compose.cluster import answers
from rollcall.compose.processes import ChildProcess, module, spawn, wait_until
from rollcall.compose.services import embedded
from rollcall.compose.services.service_errors import ServicesError
from rollcall.sandbox.process_tree import children

FLAP_S = 0.4
"""The time that a flapping link is up, then down."""
GONE_S = 10.0
SERVER = "fork_server.py"
ACCEPT = "--accept-truncation"
"""The option that a worker demands when it ends because the log has lost records."""
ACCEPTED = "loss_accepted"
"""The event with which a worker with that option reports a loss, instead of ending."""
AGAIN_S = 1.0
"""The least lifetime of a worker that ended by itself for an immediate restart."""


def to_registry(name: str) -> str:
    """Return the name of a worker's link to the registry."""
    return f"{name}/registry"


class Victim(Protocol):
    """One target of faults, under its name in the schedule."""

    name: str

    @property
    def group(self) -> str | None:
        """The group whose progress shows that it has recovered; None: any group."""
        ...

    def fit(self) -> bool:
        """Return True if a fault would have a target now."""
        ...

    def back(self) -> bool:
        """Return True if it works again after a fault."""
        ...

    def begin(self, fault: Fault) -> None: ...

    def during(self, fault: Fault, since_s: float) -> None: ...

    def end(self, fault: Fault) -> None: ...

    def partitions(self) -> set[int]:
        """Return the journal partitions that are stalled without it."""
        ...

    def look(self) -> None:
        """Check its state, and restart it if it died by itself."""
        ...


class BriefVictim:
    """A victim whose faults are momentary, and without which no partition is stalled."""

    def back(self) -> bool:
        """Return True: its users replace it themselves, so its presence shows nothing."""
        return True

    def during(self, fault: Fault, since_s: float) -> None:
        """Do nothing during the fault."""

    def end(self, fault: Fault) -> None:
        """Do nothing, as there is nothing to undo."""

    def partitions(self) -> set[int]:
        return set()

    def look(self) -> None:
        """Do nothing, as it needs no restart."""


@dataclass
class WorkerVictim:
    """A worker process with its own links to the broker and to the registry."""

    name: str
    command: Sequence[str]
    environment: Mapping[str, str]
    log: Path
    proxy: Proxy
    topic: str
    """A topic of the workload, all of whose partitions always have work."""
    joined: str
    """The log line that shows that it works."""
    clock: WallClock
    releases: Sequence[str] = ("",)
    """The first entry of the module path, for each release that it may run."""
    release: int = 0
    """The index of its present release."""
    fell: list[int] = field(default_factory=list)
    """Exit codes of its processes that ended by themselves."""
    losses: list[str] = field(default_factory=list)
    """Lines of its log that report committed records which the log has lost."""
    process: ChildProcess | None = None
    owned: set[int] = field(default_factory=set)
    _accepts: bool = False
    """True if its next start has the option ACCEPT."""
    _stopping: bool = False
    _joined: bool = False
    _started: float = 0.0
    _read: int = 0

    @property
    def group(self) -> str:
        """The prefix of the names of its group."""
        return self.name.rpartition("-")[0]

    def start(self) -> None:
        """Start it; call this in the longest-living thread, as the child dies with the thread."""
        name, *words = self.command
        self.owned.clear()
        self._joined, self._started = False, time.monotonic()
        self._read = self.log.stat().st_size if self.log.exists() else 0
        accept, self._accepts = [ACCEPT] if self._accepts else [], False
        self.process = spawn(
            module(name_in(self.releases[self.release], name), *words, *accept),
            self.log,
            environment={**self.environment, **self._path()},
            directory=self.log.parent,  # a folder without packages of another release
        )

    def _path(self) -> dict[str, str]:
        """Return the variables of its module path and its clock."""
        first, rest = self.releases[self.release], self.environment.get("PYTHONPATH", "")
        return self.clock.environment(os.pathsep.join(filter(None, (first, rest))))

    def fit(self) -> bool:
        return self._joined

    def back(self) -> bool:
        return self.fit()

    def partitions(self) -> set[int]:
        return set(self.owned)

    def kill(self) -> None:
        """Send SIGKILL; it restarts at once, with the next release."""
        self._send(signal.SIGKILL)
        self._process().wait(GONE_S)
        self._follow_log()  # it may have reported a loss since the last read
        self.release = (self.release + 1) % len(self.releases)
        self.start()

    def begin(self, fault: Fault) -> None:
        if fault.kind == KILL:
            self.kill()
        elif fault.kind == CUT_REGISTRY:
            self.proxy.cut(to_registry(self.name))
            self.kill()
        elif fault.kind == CLOCK:
            self.clock.set(-SET_BACK_S)
            self.kill()
        elif fault.kind == PAUSE:
            self._send(signal.SIGSTOP)
        elif fault.kind != FLAP:
            self.proxy.cut(
                self.name,
                to_broker=fault.kind != CUT_TO_CLIENT,
                to_client=fault.kind != CUT_TO_BROKER,
            )

    def during(self, fault: Fault, since_s: float) -> None:
        if fault.kind != FLAP:
            return
        if int(since_s / FLAP_S) % 2:
            self.proxy.heal(self.name)
        else:
            self.proxy.cut(self.name)
            self.proxy.drop(self.name)

    def end(self, fault: Fault) -> None:
        if fault.kind == PAUSE:
            self._send(signal.SIGCONT)
        elif fault.kind == CUT_REGISTRY:
            self.proxy.heal(to_registry(self.name))
        elif fault.kind == CLOCK:
            self.clock.set(0.0)
        elif fault.kind != KILL:
            self.proxy.heal(self.name)

    def look(self) -> None:
        code = self._process().poll()
        self._follow_log()
        if code is None or self._stopping:
            return
        if time.monotonic() - self._started > AGAIN_S:
            self.fell.append(code)
            self.start()

    def ask_to_stop(self) -> None:
        """Send SIGTERM, also if it is paused; it is not restarted."""
        self._stopping = True
        self._send(signal.SIGCONT)
        self._send(signal.SIGTERM)

    def wait(self, until: float) -> int:
        """Return its exit code; it gets SIGKILL if it still runs at `until`."""
        try:
            return self._process().wait(max(0.1, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            self._send(signal.SIGKILL)
            return self._process().wait(GONE_S)

    def _send(self, number: int) -> None:
        self._process().send_signal(number)

    def _process(self) -> ChildProcess:
        if self.process is None:
            msg = f"{self.name} was never started"
            raise ServicesError(msg)
        return self.process

    def _follow_log(self) -> None:
        """Update its owned partitions from new complete lines of its log."""
        with self.log.open("rb") as file:
            file.seek(self._read)
            lines, newline, _ = file.read().rpartition(b"\n")
        self._read += len(lines) + len(newline)
        for line in lines.splitlines():
            if b"partition_" in line:
                self._note(json.loads(line))
            if ACCEPT.encode() in line or ACCEPTED.encode() in line:
                self.losses.append(line.decode(errors="replace"))
            self._accepts = self._accepts or ACCEPT.encode() in line
            self._joined = self._joined or self.joined.encode() in line

    def _note(self, event: Mapping[str, object]) -> None:
        if event.get("topic") != self.topic:
            return
        number = int(str(event["partition"]))
        if event["event"] == "partition_assigned":
            self.owned.add(number)
        elif event["event"] == "partition_dropped":
            self.owned.discard(number)


@dataclass
class Stack:
    """The common state of broker and registry: one call starts those that are down."""

    state_dir: Path
    cache_dir: Path
    pool: ThreadPoolExecutor
    _coming: list[Future[embedded.Endpoints]] = field(default_factory=list)

    def start(self) -> None:
        """Begin to start the services that are down."""
        self._coming.append(
            self.pool.submit(embedded.up, self.state_dir, self.cache_dir, ready=answers)
        )

    def up(self) -> bool:
        """Return True if no start is in progress; raises the error of a failed start."""
        for done in [each for each in self._coming if each.done()]:
            self._coming.remove(done)
            done.result()
        return not self._coming


@dataclass
class ServiceVictim(BriefVictim):
    """The embedded broker or registry; it has no partitions, any written entry shows recovery."""

    name: str
    stack: Stack
    group: None = None
    _paused: bool = False

    def fit(self) -> bool:
        """Return False while either restarts, as a start fails if it loses one of the two."""
        return self.stack.up()

    def back(self) -> bool:
        return self.fit()

    def works(self) -> bool:
        """Return True if it is up, and not killed or paused by its own fault."""
        return self.fit() and not self._paused and self._pid() is not None

    def begin(self, fault: Fault) -> None:
        pid = self._pid()
        if pid is None:
            msg = f"{self.name} ended by itself; see its log below {self.stack.state_dir}"
            raise ServicesError(msg)
        if fault.kind == KILL:
            self.kill()
        else:
            os.kill(pid, signal.SIGSTOP)
            self._paused = True

    def kill(self) -> None:
        """Send SIGKILL; it has ended when this returns."""
        if (pid := self._pid()) is not None:
            os.kill(pid, signal.SIGKILL)
        if not wait_until(lambda: self._pid() is None, GONE_S):
            msg = f"{self.name} outlives SIGKILL"
            raise ServicesError(msg)

    def end(self, fault: Fault) -> None:
        self._paused = False
        if fault.kind == KILL:
            self.stack.start()
        elif (pid := self._pid()) is not None:
            os.kill(pid, signal.SIGCONT)

    def look(self) -> None:
        self.stack.up()

    def _pid(self) -> int | None:
        wanted = {"broker": "kafka"}.get(self.name, self.name)
        services = embedded.status(self.stack.state_dir)
        return next(each.pid for each in services if each.name == wanted)


@dataclass
class PartVictim(BriefVictim):
    """A part of one worker or of its environment; its group's progress shows recovery."""

    name: str
    worker: WorkerVictim

    @property
    def group(self) -> str:
        return self.worker.group


@dataclass
class ProcessVictim(PartVictim):
    """An agent's process of an environments worker; most live for seconds, often there is none."""

    def fit(self) -> bool:
        return self.worker.process is not None and bool(agents_below(self.worker.process.pid))

    def begin(self, fault: Fault) -> None:
        """Send SIGKILL to the one that runs longest, which has the most to replay."""
        running = agents_below(self.worker.process.pid) if self.worker.process else []
        if running:
            with suppress(ProcessLookupError):  # it has ended just now
                os.kill(running[0], signal.SIGKILL)


def agents_below(worker: int) -> list[int]:
    """Return the agents' processes of a worker, oldest first: children of its fork servers.

    An agent leads a session, unlike other children of a fork server.
    """
    reapers = [pid for pid in children(worker) if SERVER in _command_line(pid)]
    servers = [pid for reaper in reapers for pid in children(reaper)]
    return sorted(pid for server in servers for pid in children(server) if _leads(pid))


def _command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace")
    except OSError:
        return ""


def _leads(pid: int) -> bool:
    """Return True if a process runs and leads its session."""
    try:
        state, _, _, session = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:4]
    except (OSError, ValueError):
        return False
    return state != "Z" and int(session) == pid
