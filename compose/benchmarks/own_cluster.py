"""A temporary broker and registry, and measured processes on them."""

import os
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from rollcall.compose.benchmarks.load import POLICY
from rollcall.compose.cluster import Cluster, answers
from rollcall.compose.processes import ChildProcess, end, module, spawn, wait_until
from rollcall.compose.services import embedded
from rollcall.compose.services.service_errors import ServicesError, last_lines
from rollcall.compose.settings import Settings
from rollcall.consumers.log.protocols import Record
from rollcall.consumers.log.reading import read_all
from rollcall.producers import provision
from rollcall.producers.submit import Submitter
from rollcall.schemas.errors import Unavailable
from rollcall.schemas.messages import RolloutRequest
from rollcall.schemas.topics import wanted

GRACE_S = 10.0
TICKS = os.sysconf("SC_CLK_TCK")
MAIN = "rollcall.compose.benchmarks.measured_process"
WITHOUT_WAITING = os.WEXITED | os.WNOHANG | os.WNOWAIT


@contextmanager
def own_cluster(settings: Settings) -> Iterator[Cluster]:
    """Yield broker, registry and topics in a temporary folder; only the jars are shared.

    They end with this process in any case.
    """
    with (
        tempfile.TemporaryDirectory(prefix="rollcall-bench-") as folder,
        ThreadPoolExecutor(len(embedded.NAMES)) as threads,
    ):
        state = Path(folder)
        endpoints = embedded.up(state, settings.cache(), ready=answers, threads=threads)
        try:
            own = settings.model_copy(update={"state_dir": state})
            cluster = Cluster(endpoints.bootstrap_servers, endpoints.registry_url, own)
            topics = wanted(settings.prefix, [POLICY])
            provision.apply(cluster.admin, cluster.registry, topics)
            yield cluster
        finally:
            embedded.down(state, wipe=True)


@contextmanager
def processes(
    cluster: Cluster, *commands: Sequence[str], doomed: Collection[str] = ()
) -> Iterator[dict[str, int]]:
    """Run `measured_process` once per command; yields their pids by first word.

    Raises ServicesError if one that is not `doomed` ended early.
    """
    logs = logs_of(cluster)
    logs.mkdir(exist_ok=True)
    environment = {
        **os.environ,
        **cluster.environment(),
        "ROLLCALL_PREFIX": cluster.settings.prefix,
        "ROLLCALL_AGENTS__MAX_LIVE": str(cluster.settings.agents.max_live),
    }
    running: dict[str, ChildProcess] = {}
    try:
        for command in commands:
            log = logs / f"{command[0]}.log"
            running[command[0]] = spawn(module(MAIN, *command), log, environment=environment)
        try:
            yield {name: process.pid for name, process in running.items()}
        except TimeoutError as error:
            raise ServicesError(_last_words(running, logs, doomed) or str(error)) from error
        if words := _last_words(running, logs, doomed):
            raise ServicesError(words)
    finally:
        end(running.values(), GRACE_S)


def logs_of(cluster: Cluster) -> Path:
    """Return the log folder of the measured processes, each with a file of its name."""
    return cluster.settings.state() / "bench"


def _last_words(running: dict[str, ChildProcess], logs: Path, doomed: Collection[str]) -> str:
    """Return the ends of the logs of ended processes; empty while all live."""
    return "\n".join(
        f"{name} ended while it was measured; its last words:\n{last_lines(logs / f'{name}.log')}"
        for name, process in running.items()
        if process.poll() is not None and name not in doomed
    )


def cpu_s(pids: dict[str, int]) -> dict[str, float]:
    """Return the CPU seconds of each process."""
    used = {}
    for name, pid in pids.items():
        words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        used[name] = (int(words[11]) + int(words[12])) / TICKS
    return used


@dataclass(frozen=True, slots=True)
class Measurement:
    """A period of wall time with its counts."""

    seconds: float
    count: int
    cpu_s: dict[str, float]

    @property
    def rate(self) -> float:
        return self.count / self.seconds


def together(first: Measurement, second: Measurement) -> Measurement:
    """Return two measurements as one."""
    cpu_s = Counter(first.cpu_s) + Counter(second.cpu_s)
    return Measurement(first.seconds + second.seconds, first.count + second.count, dict(cpu_s))


def measure(
    cluster: Cluster,
    topic: str,
    pids: dict[str, int],
    seconds: float,
    counts: Callable[[Record], bool],
) -> Measurement:
    """Wait `seconds`, then count the records that were appended to the topic in that time."""
    watched = {**services_of(cluster), **pids}
    starts = cluster.admin.ends({topic: cluster.log.partitions(topic)})
    began, before = time.time(), cpu_s(watched)
    time.sleep(seconds)
    ended, after = time.time(), cpu_s(watched)
    count = 0
    for record in read_all(cluster.log, [topic], starts, most=5000):
        if began * 1000 <= record.timestamp_ms < ended * 1000:
            count += counts(record)
    return Measurement(ended - began, count, {name: after[name] - before[name] for name in watched})


def services_of(cluster: Cluster) -> dict[str, int]:
    """Return the broker's pid."""
    endpoints = embedded.endpoints(cluster.settings.state())
    return {"broker": endpoints.kafka_pid} if endpoints else {}


def wait_for(
    condition: Callable[[], bool], what: str, pids: Iterable[int], timeout_s: float = 90.0
) -> None:
    """Poll a condition; raises TimeoutError, at once if a process of `pids` has ended."""
    late = TimeoutError(f"{what}: not within {timeout_s:g} s")

    def holds() -> bool:
        if condition():
            return True
        if any(os.waitid(os.P_PID, pid, WITHOUT_WAITING) for pid in pids):
            raise late
        return False

    if not wait_until(holds, timeout_s):
        raise late


def publish(cluster: Cluster, requests: Iterable[RolloutRequest]) -> None:
    """Publish requests, and wait for their acks."""
    publisher = cluster.log.publisher()
    submitter = Submitter(publisher, cluster.codec, cluster.topics, "bench")
    for request in requests:
        submitter.publish(request)
    publisher.flush(60)


def await_records(
    cluster: Cluster, topic: str, count: int, pids: Mapping[str, int], timeout_s: float = 90.0
) -> None:
    """Wait until a topic has `count` records."""
    partitions = {topic: cluster.log.partitions(topic)}

    def there() -> bool:
        with suppress(Unavailable):  # leader election is in progress
            return bool(sum(cluster.admin.ends(partitions).values()) >= count)
        return False

    wait_for(there, f"{count} records in {topic}", pids.values(), timeout_s)


def with_slots(settings: Settings, **slots: int) -> Settings:
    """Return the settings with these slots for asynchronous environments."""
    table = settings.environments.model_copy(update={"slots": slots})
    return settings.model_copy(update={"environments": table})


def cpu_shares(window: Measurement) -> str:
    """Return the CPU seconds by process as text."""
    shares = ", ".join(f"{name} {used:.1f}" for name, used in window.cpu_s.items())
    return f"CPU seconds: {shares}"
