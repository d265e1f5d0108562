"""Broker and registry of one state directory: put up, looked at, taken down.

The law: at most one of each lives per state directory, and no other process is ever signalled. A
process is known by pid *and* start time, so a pid that was dealt again is nobody's. What runs where
is in `<state_dir>/services/<name>/process.json`, written before the process is waited for: whoever
is killed in here leaves nothing that the next call does not find. `up` and `down` of one state
directory wait for one another.
"""

import contextlib
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Protocol

from compose.services.artifacts import exclusive, require_space
from compose.services.kafka_broker import KafkaBroker
from compose.services.schema_registry import Registry
from compose.services.service_errors import ServicesError, cannot_run, last_lines
from schemas.whole_files import write_whole

STATE_BYTES = 1 << 30
READY_DEADLINE_S = 60.0
GRACE_S = 20.0
NAMES = ("kafka", "registry")


@dataclass(frozen=True, slots=True)
class Endpoints:
    """Where the services of one state directory are found."""

    bootstrap_servers: str
    registry_url: str
    kafka_pid: int
    registry_pid: int
    state_dir: Path


@dataclass(frozen=True, slots=True)
class ServiceStatus:
    """One service as it is now; pid and address are None while it does not live."""

    name: str
    pid: int | None
    address: str | None
    log: Path


@dataclass(frozen=True, slots=True)
class Stopped:
    """One process that `down` ended, and whether it took SIGKILL."""

    name: str
    pid: int
    killed: bool


@dataclass(frozen=True, slots=True)
class Record:
    """The last process of a service; its ports outlive it, so that clients find the next one."""

    pid: int
    started: str
    port: int
    side_port: int
    """The controller's, or the management port."""
    properties: dict[str, str] = field(default_factory=dict)

    @property
    def lives(self) -> bool:
        return started(self.pid) == self.started


class Service(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def home(self) -> Path: ...
    def prepare(self) -> list[str]: ...
    def is_ready(self) -> bool: ...


def up(
    state_dir: Path,
    cache_dir: Path,
    *,
    kafka_port: int | None = None,
    registry_port: int | None = None,
    ready: Callable[[str], bool],
    broker_properties: Mapping[str, str] = {},
) -> Endpoints:
    """Start what is not alive, side by side, and return when both answer.

    What was up before comes back on its old ports where they are free, with its data. `ready` is
    asked with the bootstrap address whether the broker lists its topics. `broker_properties` are
    remembered until `down`. When one service cannot be had, the other is not left behind.
    """
    with exclusive(state_dir / "services.lock"):
        _sweep(state_dir)
        home, registry_home = (_home(state_dir, name) for name in NAMES)
        kafka = _plan(home, kafka_port, broker_properties, taken=())
        taken = (kafka.port, kafka.side_port)
        registry = _plan(registry_home, registry_port, {}, taken=taken)
        services: list[tuple[Service, Record]] = [
            (KafkaBroker(home, *taken, cache_dir, ready, kafka.properties), kafka),
            (Registry(registry_home, registry.port, registry.side_port, cache_dir), registry),
        ]
        with ThreadPoolExecutor(max_workers=len(services)) as pool:
            raised = [pool.submit(_raise, *each) for each in services]
        _all_or_none(raised)
    found = endpoints(state_dir)
    if found is None:
        msg = f"a service ended just after it had answered; see the logs below {state_dir}"
        raise ServicesError(msg)
    return found


def endpoints(state_dir: Path) -> Endpoints | None:
    """Where the services are, None unless both live. Reads only; says nothing about readiness."""
    kafka, registry_ = (_read(_home(state_dir, name)) for name in NAMES)
    if kafka is None or registry_ is None or not (kafka.lives and registry_.lives):
        return None
    return Endpoints(
        bootstrap_servers=_address("kafka", kafka.port),
        registry_url=_address("registry", registry_.port),
        kafka_pid=kafka.pid,
        registry_pid=registry_.pid,
        state_dir=state_dir,
    )


def status(state_dir: Path) -> tuple[ServiceStatus, ...]:
    """Broker and registry, in that order, whether or not they were ever up."""
    return tuple(_status(name, _home(state_dir, name)) for name in NAMES)


def down(state_dir: Path, *, wipe: bool) -> tuple[Stopped, ...]:
    """End both processes and return those that lived; `wipe` also removes what they stored.

    SIGTERM, 20 s, SIGKILL. Log and registry are removed in one step, both or none: records whose
    schema ids mean something else would be worse than no records.
    """
    if not state_dir.exists():
        return ()
    with exclusive(state_dir / "services.lock"):
        with ThreadPoolExecutor(max_workers=len(NAMES)) as pool:
            stopped = list(pool.map(_take_down, (_home(state_dir, name) for name in NAMES)))
        if wipe and (state_dir / "services").exists():
            (state_dir / "services").rename(state_dir / f"services.wiped-{time.time_ns()}")
        _sweep(state_dir)
    return tuple(each for each in stopped if each is not None)


def _home(state_dir: Path, name: str) -> Path:
    return state_dir.absolute() / "services" / name


def _address(name: str, port: int) -> str:
    host = f"127.0.0.1:{port}"
    return host if name == "kafka" else f"http://{host}/apis/ccompat/v7"


def _status(name: str, home: Path) -> ServiceStatus:
    record, log = _read(home), home / f"{name}.log"
    if record is None or not record.lives:
        return ServiceStatus(name, None, None, log)
    return ServiceStatus(name, record.pid, _address(name, record.port), log)


def _sweep(state_dir: Path) -> None:
    for wiped in state_dir.glob("services.wiped-*"):
        shutil.rmtree(wiped)


def _plan(
    home: Path, port: int | None, properties: Mapping[str, str], *, taken: Collection[int]
) -> Record:
    """The process as it lives, or, with pid 0, as it is to be started.

    All ports are dealt before anything runs side by side. Old ones are kept where they are free.
    """
    old = _read(home)
    if old is not None and old.lives:
        _refuse_change(home.name, old, port, properties)
        return old
    if port is not None and (port in taken or not is_free(port)):
        msg = (
            f"port {port} on 127.0.0.1, asked for {home.name}, is in use by another process; stop "
            f"that one or choose another {home.name} port"
        )
        raise ServicesError(msg)
    port = port or _old_or_new(old.port if old else None, taken)
    side_port = _old_or_new(old.side_port if old else None, {*taken, port})
    return Record(0, "never", port, side_port, dict(properties) or (old.properties if old else {}))


def _refuse_change(
    name: str, live: Record, port: int | None, properties: Mapping[str, str]
) -> None:
    """What lives cannot be moved or set otherwise."""
    if port not in (None, live.port):
        msg = f"{name} is up on port {live.port}; take it down before it can move to {port}"
        raise ServicesError(msg)
    if properties and dict(properties) != live.properties:
        msg = (
            f"{name} is up with the properties {live.properties}; take it down before it can have "
            f"{dict(properties)}"
        )
        raise ServicesError(msg)


@dataclass(frozen=True, slots=True)
class _Raised:
    record: Record
    is_new: bool


def _raise(service: Service, plan: Record) -> _Raised:
    """Start a service unless it lives, and wait until it answers."""
    log = service.home / f"{service.name}.log"
    if plan.lives:
        try:
            _wait_until_ready(service, plan, log, since=0)
        except ServicesError:
            if plan.lives:
                raise
            # It was dying when we looked: then it is started as if it had been dead.
        else:
            return _Raised(plan, is_new=False)
    service.home.mkdir(parents=True, exist_ok=True)
    require_space(service.home, STATE_BYTES, shutil.disk_usage(service.home).free)
    command = service.prepare()
    since = log.stat().st_size if log.exists() else 0
    pid = _spawn(command, service.home, log)
    record = replace(plan, pid=pid, started=started(pid) or "ended")
    _write(service.home, record)
    try:
        _wait_until_ready(service, record, log, since=since)
    except BaseException:
        _stop(record)
        raise
    return _Raised(record, is_new=True)


def _all_or_none(raised: list[Future[_Raised]]) -> None:
    """Raise the first failure, after taking back what this call has started."""
    failures = [error for each in raised if (error := each.exception()) is not None]
    if failures:
        for each in raised:
            if each.exception() is None and each.result().is_new:
                _stop(each.result().record)
        raise failures[0]


def _wait_until_ready(service: Service, record: Record, log: Path, *, since: int) -> None:
    """Race the first answer against the end of the process; an answer of a dead one is no answer.

    It may come from a stranger who took the port between our look and the start.
    """
    deadline = time.monotonic() + READY_DEADLINE_S
    while time.monotonic() < deadline:
        answered = service.is_ready()
        if not record.lives:
            msg = (
                f"{service.name} ended before it was ready; the end of {log}:\n"
                f"{last_lines(log, since=since)}"
            )
            raise ServicesError(msg)
        if answered:
            return
        time.sleep(0.05)
    msg = (
        f"{service.name} (pid {record.pid}) lives but has not answered for {READY_DEADLINE_S:.0f} "
        f"s; take it down, then up again. The end of {log}:\n{last_lines(log, since=since)}"
    )
    raise ServicesError(msg)


def _old_or_new(old: int | None, taken: Collection[int]) -> int:
    if old is None or old in taken or not is_free(old):
        return free_port(taken)
    return old


def free_port(taken: Collection[int]) -> int:
    """Drawn below the ports that the kernel deals to outgoing connections: a client that keeps
    calling a port of those while nobody listens can end up connected to itself, and hold it.
    """
    draw = random.SystemRandom()
    while (port := draw.randrange(20_000, 32_000)) in taken or not is_free(port):
        pass
    return port


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        # As Java does: a port in TIME_WAIT counts as free
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


_CHILDREN: dict[int, subprocess.Popen[bytes]] = {}
"""The processes that this very process has started; somebody must collect them when they end."""


def _spawn(command: list[str], home: Path, log: Path) -> int:
    """Start a process that a Ctrl-C at our terminal does not reach."""
    try:
        with log.open("ab") as output:
            child = subprocess.Popen(
                command,
                cwd=home,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
    except OSError as error:
        raise cannot_run(Path(command[0]), error) from error
    _CHILDREN[child.pid] = child
    return child.pid


_BOOT = Path("/proc/sys/kernel/random/boot_id")


def started(pid: int) -> str | None:
    """When a process started: boot id and clock ticks since. None when it has ended.

    A pid alone names nobody for long, pids are dealt again.
    """
    child = _CHILDREN.get(pid)
    if child is not None and child.poll() is not None:
        return None
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
        threads = len(os.listdir(f"/proc/{pid}/task"))
    except (FileNotFoundError, ProcessLookupError):
        return None
    state, *rest = stat.rpartition(")")[2].split()  # the name before it may hold anything
    # While other threads of a dying process run on, it holds its ports, whatever its state says
    if state in "ZX" and threads <= 1 and child is None:
        return None
    return f"{_BOOT.read_text().strip()}/{rest[18]}"


def _stop(record: Record, *, grace_s: float = GRACE_S) -> bool | None:
    """End a process; True if it took SIGKILL, None if there was nothing to end."""
    if not record.lives:
        return None
    for sent, wait_s in ((signal.SIGTERM, grace_s), (signal.SIGKILL, 10.0)):
        with contextlib.suppress(ProcessLookupError):
            os.kill(record.pid, sent)
        deadline = time.monotonic() + wait_s
        while record.lives and time.monotonic() < deadline:
            time.sleep(0.02)
        if not record.lives:
            return sent is signal.SIGKILL
    msg = f"process {record.pid} outlives SIGKILL; it hangs in the kernel, look at its disk"
    raise ServicesError(msg)


def _take_down(home: Path) -> Stopped | None:
    """Its ports stay on record for the next start, its properties do not."""
    record = _read(home)
    if record is None:
        return None
    killed = _stop(record)
    _write(home, replace(record, properties={}))
    return None if killed is None else Stopped(home.name, record.pid, killed)


def _write(home: Path, record: Record) -> None:
    write_whole(home / "process.json", json.dumps(asdict(record)))


def _read(home: Path) -> Record | None:
    try:
        return Record(**json.loads((home / "process.json").read_text()))
    except FileNotFoundError:
        return None
