"""Turns per second and the time of one turn, of real worker processes on a real broker.

Agents, models, environments; requests, trajectories and commits are part of the work, scoring is
not. The ceiling is the four hops of `echo` on the same broker, half measured directly before and
half directly afterwards, as the speed of a shared machine drifts; the same with Avro shows which
part of the difference is encoding and decoding. The latter comes first, as it is not the ceiling: a
new broker takes up to twice the CPU per record, which the first measurement includes.
"""

import json
import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

from rollcall.compose.benchmarks import echo, load
from rollcall.compose.benchmarks.figure import Figure
from rollcall.compose.benchmarks.own_cluster import (
    Measurement,
    await_records,
    cpu_shares,
    measure,
    own_cluster,
    processes,
    publish,
    together,
)
from rollcall.compose.cluster import Cluster
from rollcall.compose.services.service_errors import ServicesError
from rollcall.compose.settings import Settings
from rollcall.consumers.log.protocols import Record
from rollcall.consumers.log.reading import read_all
from rollcall.schemas.messages import EnvironmentStepped, Event

LIVE = 4000
WARM_S = 10.0
WINDOW_S = 15.0
AHEAD = 36_000
"""The requests published before the workers start; running out of them is a failure."""
ROLES = ("agents", "models", "environments")
CREW = ("agents", "agents-2", "models", "environments")
"""The workers; a turn costs agents as much as all others together, so there are two of them."""
ALONE = 50
"""The number of rollouts of 8 turns, one live at a time: 400 turns."""
WARMING = 100
"""The number of rollouts before the measurement."""


class Windows(NamedTuple):
    """The measurements of one run, one after the other on the same broker."""

    avro: Measurement
    workers: Measurement
    echo: Measurement


class TurnBenchmark:
    """Turns with a fixed number of tokens, and a constant number of live rollouts.

    They are measured on first use: all figures are from one run.
    """

    def __init__(self, tokens: int) -> None:
        self.tokens = tokens
        self.measured: Windows | None = None

    def per_second(self, settings: Settings) -> Figure:
        """Return turns per second, against those of the echo."""
        avro, workers, echo_ = self._windows(settings)
        notes = (_note("workers", workers), _note("echo", echo_), _note("echo with Avro", avro))
        return Figure(workers.rate, "turns/s", echo_.rate, notes=notes)

    def us_per_hop(self, settings: Settings) -> Figure:
        """Return microseconds of CPU per hop, over all processes including the broker."""
        _, workers, echo_ = self._windows(settings)
        return Figure(_us_per_hop(workers), "us", _us_per_hop(echo_), lower_is_better=True)

    def _windows(self, settings: Settings) -> Windows:
        if self.measured is None:
            share = LIVE // sum(role.startswith("agents") for role in CREW)
            agents = settings.agents.model_copy(update={"max_live": share})
            with own_cluster(settings.model_copy(update={"agents": agents})) as cluster:
                self.measured = self._run(cluster)
        return self.measured

    def _run(self, cluster: Cluster) -> Windows:
        echo.provide(cluster)
        avro = self._echo(cluster, "avro", WINDOW_S)
        before = self._echo(cluster, "echo", WINDOW_S / 2)
        submit(cluster, range(AHEAD))
        topic, tokens = cluster.topics.events, str(self.tokens)
        with processes(cluster, *([role, tokens, "0"] for role in CREW)) as pids:
            await_records(cluster, topic, 4 * LIVE, pids)
            time.sleep(WARM_S)
            workers = measure(cluster, topic, pids, WINDOW_S, is_answer)
            check_ahead(cluster)
        after = self._echo(cluster, "again", WINDOW_S / 2)
        return Windows(avro, workers, together(before, after))

    def _echo(self, cluster: Cluster, kind: str, seconds: float) -> Measurement:
        """Measure the turns of the echo, with Avro or without."""
        topic, tokens = echo.topics_of(cluster, kind).events, str(self.tokens)
        with processes(cluster, *([f"{kind}-{r}", tokens, str(LIVE)] for r in ROLES)) as pids:
            await_records(cluster, topic, 4 * LIVE, pids)
            time.sleep(WARM_S)
            return measure(cluster, topic, pids, seconds, echo.is_answer)


class TurnTimes:
    """The times of turns, one rollout live, by its environment's clock.

    They are measured on first use: all figures are from one run. Half of the turns come before the
    echo's and half after it, on a warm broker: in its first half minute it takes twice the CPU per
    record, which the first measurement would include.
    """

    def __init__(self, rollouts: int = ALONE, tokens: int = 64) -> None:
        self.rollouts, self.tokens = rollouts, tokens
        self.measured: dict[str, list[float]] = {}
        """The milliseconds of each turn of the workers, and of the echo."""

    def median(self, settings: Settings) -> Figure:
        """Return the median time of a turn."""
        figure = self._figure(settings, "ms", lambda spans: _quantile(spans, 50))
        return replace(figure, notes=tuple(_quantiles(*each) for each in self.measured.items()))

    def p99(self, settings: Settings) -> Figure:
        """Return the p99 time of a turn."""
        return self._figure(settings, "ms", lambda spans: _quantile(spans, 99))

    def tail(self, settings: Settings) -> Figure:
        """Return p99 over median, which shows occasional stalls of a live rollout."""
        return self._figure(settings, "x", tail)

    def _figure(self, settings: Settings, unit: str, of: Callable[[list[float]], float]) -> Figure:
        if not self.measured:
            with own_cluster(settings) as cluster:
                self.measured = self._run(cluster)
        ours, best = (of(self.measured[who]) for who in ("workers", "echo"))
        return Figure(ours, unit, best, lower_is_better=True)

    def _run(self, cluster: Cluster) -> dict[str, list[float]]:
        tokens, rollouts = self.tokens, self.rollouts
        echo.provide(cluster)
        warm_up(cluster, tokens)
        ours = native_turns(cluster, tokens, rollouts // 2)
        topic = echo.topics_of(cluster).events
        with processes(cluster, *([f"echo-{r}", str(tokens), "1"] for r in ROLES)) as pids:
            await_records(cluster, topic, 2 * load.TURNS * rollouts, pids)
            echoed = _spans([echo.shown(record) for record in read_all(cluster.log, [topic])])
        ours += native_turns(cluster, tokens, rollouts - rollouts // 2)
        return {"workers": ours, "echo": echoed}


def warm_up(cluster: Cluster, tokens: int) -> None:
    """Warm up a new broker, so that its per-record code is compiled."""
    native_turns(cluster, tokens, WARMING)


def native_turns(cluster: Cluster, tokens: int, rollouts: int) -> list[float]:
    """Return the milliseconds of each turn of further rollouts, one live at a time."""
    topic, ended = cluster.topics.events, cluster.topics.trajectories
    starts = cluster.admin.ends({topic: cluster.log.partitions(topic)})
    before = sum(cluster.admin.ends({ended: cluster.log.partitions(ended)}).values())
    with processes(cluster, *([role, str(tokens), "0"] for role in ROLES)) as pids:
        for number in range(before, before + rollouts):
            submit(cluster, [number])
            await_records(cluster, ended, number + 1, pids)
        return _spans(_shown(cluster, read_all(cluster.log, [topic], starts)))


def submit(cluster: Cluster, numbers: Iterable[int], turns: int = load.TURNS) -> None:
    """Publish one request for each number."""
    publish(cluster, (load.request(f"{number:032x}", turns) for number in numbers))


def check_ahead(cluster: Cluster) -> None:
    """Raise ServicesError if the prepared requests ran out during the measurement."""
    requests, group = cluster.topics.requests, cluster.topics.group("agents")
    ends = cluster.admin.ends({requests: cluster.log.partitions(requests)})
    taken = cluster.log.committed(group, requests)
    if sum(taken.values()) >= sum(ends.values()):
        msg = "the requests ran out while turns were counted; publish more of them ahead"
        raise ServicesError(msg)


def is_answer(record: Record) -> bool:
    return ("ce_type", b"ModelAnswered") in (record.headers or ())


def _shown(cluster: Cluster, records: Iterable[Record]) -> list[tuple[bytes | None, int]]:
    """Return the rollout and time of each observation."""
    shown = []
    for record in records:
        body = cluster.codec.decode(record.value, Event).body
        info = json.loads(body.info) if isinstance(body, EnvironmentStepped) else {}
        if "at_ns" in info:
            shown.append((record.key, info["at_ns"]))
    return shown


def _spans(shown: Iterable[tuple[bytes | None, int] | None]) -> list[float]:
    """Return the milliseconds from each observation of a rollout to its next."""
    seen = sorted(s for s in shown if s is not None)
    return [(b[1] - a[1]) / 1e6 for a, b in pairwise(seen) if a[0] == b[0]]


def _note(what: str, window: Measurement) -> str:
    """Return the CPU per process and per record as text."""
    return (
        f"{what}: {window.rate:,.0f} turns/s over {window.seconds:.1f} s; {cpu_shares(window)}; "
        f"{_us_per_hop(window):.0f} us of CPU per hop, all processes together"
    )


def _us_per_hop(window: Measurement) -> float:
    return sum(window.cpu_s.values()) / max(1, load.HOPS * window.count) * 1e6


def _quantile(spans: list[float], percent: int) -> float:
    return statistics.quantiles(spans, n=100)[percent - 1]


def tail(spans: list[float]) -> float:
    """Return the ratio of p99 and median."""
    return _quantile(spans, 99) / _quantile(spans, 50)


def _quantiles(what: str, spans: list[float]) -> str:
    p50, p99 = _quantile(spans, 50), _quantile(spans, 99)
    return (
        f"{what}: {len(spans)} turns, p50 {p50:.1f} ms, p99 {p99:.1f} ms, which is "
        f"{tail(spans):.1f} times that, longest {max(spans):.1f} ms"
    )
