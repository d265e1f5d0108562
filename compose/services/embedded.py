"""Start, inspect and stop the broker and registry of one state directory.

Invariants: at most one of each lives per state directory, and no other process is ever signalled. A
process is recorded before it is waited for, so that if this is killed, the next call finds what it
started. `up` and `down` of one state directory wait for each other.
"""

import shutil
import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Executor, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from rollcall.compose.processes import spawn, started, wait_until
from rollcall.compose.services.artifacts import LOCKS, exclusive, missing, require_space
from rollcall.compose.services.kafka_broker import KafkaBroker
from rollcall.compose.services.schema_registry import SchemaRegistry
from rollcall.compose.services.service_errors import ServicesError, cannot_run, last_lines
from rollcall.compose.services.service_process import (
    Service,
    ServiceProcess,
    is_free,
    kept_or_free,
    on_record,
)
from rollcall.schemas.private_folders import make_private

STATE_BYTES = 1 << 30
READY_DEADLINE_S = 60.0
NAMES = ("kafka", "registry")
TELL_AFTER_S, TELL_EVERY_S = 1.0, 5.0


@dataclass(frozen=True, slots=True)
class Endpoints:
    """The addresses of the services of one state directory."""

    bootstrap_servers: str
    registry_url: str
    kafka_pid: int
    registry_pid: int
    state_dir: Path


@dataclass(frozen=True, slots=True)
class ServiceStatus:
    """The state of one service; pid and address are None while it does not run."""

    name: str
    pid: int | None
    address: str | None
    log: Path


@dataclass(frozen=True, slots=True)
class StoppedService:
    """One process that `down` ended, and if it took SIGKILL."""

    name: str
    pid: int
    killed: bool


def up(
    state_dir: Path,
    cache_dir: Path,
    *,
    kafka_port: int | None = None,
    registry_port: int | None = None,
    ready: Callable[[str], bool],
    broker_properties: Mapping[str, str] = {},
    threads: Executor | None = None,
    tell: Callable[[str], None] = lambda words: None,
) -> Endpoints:
    """Start the services that do not run, in parallel, and return when both answer.

    They run until `down`; or, if `threads` starts them, no longer than its two threads live.

    A service that ran before keeps its data, and its ports where they are free. `ready` is called
    with the bootstrap address and returns True if the broker lists its topics. `broker_properties`
    are kept until `down`. If one service fails to start, the other is stopped too. `tell` gets a
    line of progress at times. Raises ServicesError.
    """
    with exclusive(state_dir / "services.lock"):
        _sweep(state_dir)
        _mark(state_dir).unlink(missing_ok=True)
        home, registry_home = (_home(state_dir, name) for name in NAMES)
        kafka = _plan(home, kafka_port, broker_properties, taken=())
        taken = (kafka.port, kafka.side_port)
        registry = _plan(registry_home, registry_port, {}, taken=taken)
        services: list[tuple[Service, ServiceProcess]] = [
            (KafkaBroker(home, *taken, cache_dir, ready, kafka.properties), kafka),
            (SchemaRegistry(registry_home, registry.port, registry.side_port, cache_dir), registry),
        ]
        _start_all(services, threads, partial(_progress, cache_dir, tell))
        both = endpoints(state_dir)
    if both is None:
        msg = f"a service ended just after it had answered; see the logs below {state_dir}"
        raise ServicesError(msg)
    return both


def endpoints(state_dir: Path) -> Endpoints | None:
    """Return the addresses, None unless both live. Reads only; does not check readiness."""
    kafka, registry_ = (on_record(_home(state_dir, name)) for name in NAMES)
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
    """Return the states of broker and registry, in that order, even if they never ran."""
    return tuple(_status(name, _home(state_dir, name)) for name in NAMES)


def down(state_dir: Path, *, wipe: bool) -> tuple[StoppedService, ...]:
    """End both processes and return those that lived; `wipe` also removes their data.

    Their clients can see it first (`taken_down`); no other process is signalled or waited for.
    SIGTERM, 20 s, SIGKILL. Log and registry are removed in one step, both or none: records with
    schema ids of another registry would be worse than no records.
    """
    if not state_dir.exists():
        return ()
    with exclusive(state_dir / "services.lock"):
        _mark(state_dir).touch()
        with ThreadPoolExecutor(max_workers=len(NAMES)) as pool:
            stopped = list(pool.map(_take_down, (_home(state_dir, name) for name in NAMES)))
        if wipe and (state_dir / "services").exists():
            (state_dir / "services").rename(state_dir / f"services.wiped-{time.time_ns()}")
        _sweep(state_dir)
    return tuple(each for each in stopped if each is not None)


def taken_down(state_dir: Path, servers: str) -> Callable[[], bool]:
    """Return a function that is True once `down` was called; never for another broker.

    A broker that died does not count: its clients wait for the next one.
    """
    kafka = on_record(_home(state_dir, "kafka"))
    if kafka is None or _address("kafka", kafka.port) != servers:
        return lambda: False
    return _mark(state_dir).exists


def _mark(state_dir: Path) -> Path:
    return state_dir / "services.down"


def _home(state_dir: Path, name: str) -> Path:
    return state_dir.absolute() / "services" / name


def _address(name: str, port: int) -> str:
    host = f"127.0.0.1:{port}"
    return host if name == "kafka" else f"http://{host}/apis/ccompat/v7"


def _status(name: str, home: Path) -> ServiceStatus:
    record, log = on_record(home), home / f"{name}.log"
    if record is None or not record.lives:
        return ServiceStatus(name, None, None, log)
    return ServiceStatus(name, record.pid, _address(name, record.port), log)


def _sweep(state_dir: Path) -> None:
    for wiped in state_dir.glob("services.wiped-*"):
        shutil.rmtree(wiped)


def _plan(
    home: Path, port: int | None, properties: Mapping[str, str], *, taken: Collection[int]
) -> ServiceProcess:
    """Return the running process, or, with pid 0, the one to start.

    All ports are chosen before the parallel start. Old ports are kept where they are free.
    """
    old = on_record(home)
    if old is not None and old.lives:
        _refuse_change(home.name, old, port, properties)
        return old
    if port is not None and (port in taken or not is_free(port)):
        msg = (
            f"port {port} on 127.0.0.1, asked for {home.name}, is in use by another process; stop "
            f"that one or choose another {home.name} port"
        )
        raise ServicesError(msg)
    port = port or kept_or_free(old.port if old else None, taken)
    side_port = kept_or_free(old.side_port if old else None, {*taken, port})
    remembered = old.properties if old else {}
    return ServiceProcess(0, "never", port, side_port, dict(properties) or remembered)


def _refuse_change(
    name: str, live: ServiceProcess, port: int | None, properties: Mapping[str, str]
) -> None:
    """Raise ServicesError for another port or other properties of a running service."""
    if port not in (None, live.port):
        msg = f"{name} is up on port {live.port}; take it down before it can move to {port}"
        raise ServicesError(msg)
    if properties and dict(properties) != live.properties:
        msg = (
            f"{name} is up with the properties {live.properties}; take it down before it can have "
            f"{dict(properties)}"
        )
        raise ServicesError(msg)


def _progress(cache_dir: Path, tell: Callable[[str], None], late: Collection[str]) -> None:
    """Report what is awaited: downloads first, then the services that start."""
    absent = missing(LOCKS.glob("*.lock"), cache_dir)
    if absent:
        tell(f"downloading: {absent} files are still to come to {cache_dir} (200 MB in all)")
    else:
        tell(f"starting {' and '.join(late)}: a Java process takes some seconds to answer")


def _start_all(
    services: Collection[tuple[Service, ServiceProcess]],
    threads: Executor | None,
    progress: Callable[[Collection[str]], None],
) -> None:
    """Start the services that do not run, in parallel, all or none."""
    with ThreadPoolExecutor(max_workers=len(services)) as pool:
        starts = threads or pool
        raised = [starts.submit(_start_and_wait, *each, threads is None) for each in services]
        patience_s = TELL_AFTER_S
        while left := wait(raised, timeout=patience_s).not_done:
            names = zip(services, raised, strict=True)
            progress([service.name for (service, _), one in names if one in left])
            patience_s = TELL_EVERY_S
    _all_or_none(raised)


@dataclass(frozen=True, slots=True)
class _StartedService:
    process: ServiceProcess
    is_new: bool


def _start_and_wait(service: Service, plan: ServiceProcess, outlives_us: bool) -> _StartedService:
    """Start a service unless it runs, and wait until it answers."""
    log = service.home / f"{service.name}.log"
    if plan.lives:
        try:
            _wait_until_ready(service, plan, log, since=0)
        except ServicesError:
            if plan.lives:
                raise
            # It was already dying when checked: start it as if it were dead.
        else:
            return _StartedService(plan, is_new=False)
    make_private(service.home)
    require_space(service.home, STATE_BYTES, shutil.disk_usage(service.home).free)
    command = service.prepare()
    since = log.stat().st_size if log.exists() else 0
    process = _start(plan, command, service.home, log, outlives_us)
    try:
        _wait_until_ready(service, process, log, since=since)
    except BaseException:
        process.end()
        raise
    return _StartedService(process, is_new=True)


def _start(
    plan: ServiceProcess, command: list[str], home: Path, log: Path, outlives_us: bool
) -> ServiceProcess:
    """Start the planned process, and record it at once."""
    try:
        pid = spawn(command, log, directory=home, outlives_us=outlives_us).pid
    except OSError as error:
        raise cannot_run(Path(command[0]), error) from error
    process = replace(plan, pid=pid, started=started(pid) or "ended")
    process.note(home)
    return process


def _all_or_none(raised: list[Future[_StartedService]]) -> None:
    """Raise the first failure, after stopping the services that this call started."""
    failures = [error for each in raised if (error := each.exception()) is not None]
    if failures:
        for each in raised:
            if each.exception() is None and each.result().is_new:
                each.result().process.end()
        raise failures[0]


def _wait_until_ready(service: Service, process: ServiceProcess, log: Path, *, since: int) -> None:
    """Wait for the first answer or the end of the process; ignore an answer if it is dead.

    The answer may come from another process that took the port between our check and the start.
    """

    def answers() -> bool:
        answered = service.is_ready()
        if not process.lives:
            msg = (
                f"{service.name} ended before it was ready; the end of {log}:\n"
                f"{last_lines(log, since=since)}"
            )
            raise ServicesError(msg)
        return answered

    if not wait_until(answers, READY_DEADLINE_S, every_s=0.05):
        msg = (
            f"{service.name} (pid {process.pid}) lives but has not answered for "
            f"{READY_DEADLINE_S:.0f} s; take it down, then up again. The end of {log}:\n"
            f"{last_lines(log, since=since)}"
        )
        raise ServicesError(msg)


def _take_down(home: Path) -> StoppedService | None:
    """End a service; its ports stay recorded for the next start, its properties do not."""
    record = on_record(home)
    if record is None:
        return None
    killed = record.end()
    replace(record, properties={}).note(home)
    return None if killed is None else StoppedService(home.name, record.pid, killed)
