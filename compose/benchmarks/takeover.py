"""The takeover of 10,000 live rollouts whose worker is killed, until every one continues.

The time counts from the assignment of the first journal partition to the successor, when the group
has noticed, to the append time of the last rollout's next entry. The ceiling is the unavoidable
part: reading and decoding the journal of that time, in one process.
"""

import json
import os
import signal
import time
from collections import Counter
from datetime import datetime
from pathlib import Path

from rollcall.compose.benchmarks.figure import Figure, timed
from rollcall.compose.benchmarks.own_cluster import (
    await_records,
    logs_of,
    own_cluster,
    processes,
    wait_for,
)
from rollcall.compose.benchmarks.spine import submit
from rollcall.compose.cluster import Cluster
from rollcall.compose.settings import Settings
from rollcall.consumers.log.protocols import Record
from rollcall.consumers.log.reading import read_all
from rollcall.schemas.messages import Event

LIVE = 10_000
TOKENS = "64"
TURNS = 24
"""The turns of a rollout, more than the workers manage, so that all rollouts stay open."""
READ = 5
"""The mean number of journal entries per rollout when the worker is killed."""
ENDS = {b"RolloutFinished", b"RolloutRefused", b"RolloutCancelled", b"DeadlinePassed"}
VICTIM, HEIR = "agents", "agents-2"


def kill(settings: Settings, *, live: int = LIVE) -> Figure:
    """Measure seconds from the group's notice until all rollouts have continued."""
    agents = settings.agents.model_copy(update={"max_live": live + live // 4})
    with own_cluster(settings.model_copy(update={"agents": agents})) as cluster:
        submit(cluster, range(live), turns=TURNS)
        commands = [[role, TOKENS, "0"] for role in ("models", "environments", VICTIM)]
        with processes(cluster, *commands, doomed=[VICTIM]) as pids:
            await_records(cluster, cluster.topics.events, READ * live, pids)
            os.kill(pids[VICTIM], signal.SIGKILL)
            killed = time.time()
            with processes(cluster, [HEIR, TOKENS, "0"]) as heirs:
                others = [pid for name, pid in pids.items() if name != VICTIM]
                watched = [*others, *heirs.values()]
                log = logs_of(cluster) / f"{HEIR}.log"
                wait_for(
                    lambda: bool(noticed_at(log, cluster.topics.events)), "a takeover", watched
                )
                noticed = noticed_at(log, cluster.topics.events)
                reading = _Reading(cluster, int(noticed * 1000))
                wait_for(reading.all_went_on, "every rollout's next entry", watched)
        bare_s, _ = timed(lambda: _decode(cluster, int(noticed * 1000)))
    return reading.figure(killed, noticed, bare_s)


class _Reading:
    """The journal, read while the successor works: rollouts open at the notice, and continued."""

    def __init__(self, cluster: Cluster, noticed_ms: int) -> None:
        self.noticed_ms = noticed_ms
        self.open: set[bytes | None] = set()
        self.went_on: dict[bytes | None, int] = {}
        self.answers: Counter[bytes] = Counter()
        self.reader = cluster.log.reader([cluster.topics.events])

    def all_went_on(self) -> bool:
        for record in self.reader.poll(0.1, 5000):
            self._take(record)
        return self.reader.caught_up() and self.went_on.keys() >= self.open

    def _take(self, record: Record) -> None:
        headers = dict(record.headers or ())
        kind = headers["ce_type"] or b""
        if kind in (b"ModelAnswered", b"EnvironmentStepped"):
            self.answers[headers["ce_id"] or b""] += 1
        if record.timestamp_ms >= self.noticed_ms:
            self.went_on.setdefault(record.key, record.timestamp_ms)
        elif kind in ENDS:
            self.open.discard(record.key)
        else:
            self.open.add(record.key)

    def figure(self, killed: float, noticed: float, bare_s: float) -> Figure:
        waits = sorted(self.went_on[key] - self.noticed_ms for key in self.open)
        repeated = sum(count - 1 for count in self.answers.values())
        note = (
            f"{len(waits):,} rollouts were open, half had gone on after "
            f"{waits[len(waits) // 2] / 1000:.1f} s; the group noticed {noticed - killed:.1f} s "
            f"after the kill; {repeated:,} answers repeated"
        )
        return Figure(waits[-1] / 1000, "s", bare_s, lower_is_better=True, notes=(note,))


def noticed_at(log: Path, topic: str) -> float:
    """Return the time of the successor's first partition of a topic, by its log; 0 before."""
    for line in log.read_text().splitlines():
        word = json.loads(line) if line.startswith("{") else {}
        if (word.get("event"), word.get("topic")) == ("partition_assigned", topic):
            return datetime.fromisoformat(word["timestamp"]).timestamp()
    return 0.0


def _decode(cluster: Cluster, until_ms: int) -> None:
    """Read and decode the journal up to that time."""
    for record in read_all(cluster.log, [cluster.topics.events], most=5000):
        if record.timestamp_ms < until_ms:
            cluster.codec.decode(record.value, Event)
