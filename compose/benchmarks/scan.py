"""The speed of `rollcall verify`, `export` and `rescore`: one process, a warm broker, no rate
limit.

The log has whole rollouts of the workload, with trajectories and scores. The ceiling of `verify` is
the bare read of the same topics, without headers, decoding, folding or joining.

An export counts like `scan_records_per_s`, so that the two can be compared: in records of the
history, of which only trajectories and scores are read. Its ceiling is the bare read of these two
topics, without decoding, rows and files. A rescoring, with a constant scorer, lasts until the acks
of its rewards, and compares them with the existing ones; its ceiling reads and decodes the same
trajectories once.
"""

import resource
import tempfile
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

from rollcall.compose.benchmarks import load
from rollcall.compose.benchmarks.figure import Figure, timed
from rollcall.compose.benchmarks.own_cluster import own_cluster
from rollcall.compose.cluster import Cluster
from rollcall.compose.services.service_errors import ServicesError
from rollcall.compose.settings import Settings
from rollcall.compose.workers.rescorer import Rescorer
from rollcall.consumers.agents.fold.context import FoldContext
from rollcall.consumers.agents.fold.journal import Journal
from rollcall.consumers.agents.fold.rollout import Output
from rollcall.consumers.agents.programs import program_digest, program_of
from rollcall.consumers.audit.audit import audit
from rollcall.consumers.audit.window import MOST
from rollcall.consumers.history.reading.history import History
from rollcall.consumers.history.reading.ranges import Range, filled_extent
from rollcall.consumers.history.reading.selection import Selection
from rollcall.consumers.history.replay.export import export
from rollcall.consumers.log.protocols import Log, Record
from rollcall.consumers.log.reading import read_all, read_between
from rollcall.producers.publisher import Publisher
from rollcall.schemas.headers import full_headers, hot_headers
from rollcall.schemas.messages import (
    EnvironmentStep,
    Event,
    ModelCall,
    Reward,
    RolloutStarted,
    ScoredTrajectory,
    Trajectory,
)
from rollcall.schemas.topics import Topics

EXPORTED = 2000
RESCORED = 6000


def export_records_per_s(settings: Settings, *, rollouts: int = EXPORTED) -> Figure:
    """Measure an export of `rollouts` rollouts of eight turns."""
    with own_cluster(settings) as cluster, tempfile.TemporaryDirectory() as folder:
        fill(cluster, rollouts)
        topics = (cluster.topics.trajectories, cluster.topics.scored)
        bare_s, _ = timed(lambda: [sum(map(len, _polls(cluster, topic))) for topic in topics])
        selection, out = Selection(cluster, Range()), Path(folder) / "out"
        took_s, exported = timed(lambda: export(selection, out))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    rows, total = exported.rows, sum(exported.rows.values())
    note = (
        f"{rows['trajectories'] + rows['scores']:,} records read, {total:,} rows "
        f"written in {took_s:.1f} s ({total / took_s:,.0f} rows/s), peak memory {peak:,.0f} MB"
    )
    records = rollouts * RECORDS
    return Figure(records / took_s, "records/s", records / bare_s, notes=(note,))


def rescore_trajectories_per_s(settings: Settings, *, rollouts: int = RESCORED) -> Figure:
    """Measure a rescoring of `rollouts` rollouts of eight turns, 64 tokens each."""
    with own_cluster(settings) as cluster:
        fill(cluster, rollouts)
        bare_s, _ = timed(lambda: _decode(cluster))
        only_compared_s, _ = timed(lambda: _rescore(cluster, rollouts, dry_run=True))
        took_s, _ = timed(lambda: _rescore(cluster, rollouts, dry_run=False))
    note = f"{rollouts / only_compared_s:,.0f} trajectories/s where nothing is written (--dry-run)"
    return Figure(rollouts / took_s, "trajectories/s", rollouts / bare_s, notes=(note,))


def same(trajectory: Trajectory) -> float:
    """Score with a constant, at no cost."""
    del trajectory
    return 1.0


def _polls(cluster: Cluster, topic: str) -> Iterator[list[Record]]:
    return read_between(cluster.log, *filled_extent(cluster.log, topic, Range()))


def _decode(cluster: Cluster) -> None:
    for records in _polls(cluster, cluster.topics.trajectories):
        for record in records:
            cluster.codec.decode(record.value, Trajectory)


def _rescore(cluster: Cluster, rollouts: int, *, dry_run: bool) -> None:
    """Rescore all. Raises ServicesError for a wrong result."""
    rescorer = Rescorer([f"{__name__}:{same.__name__}"], dry_run=dry_run)
    rescoring = rescorer.rescore(cluster, Selection(cluster, Range()))
    compared = [agreement.agree for agreement in rescoring.agreements]
    if (rescoring.rewarded, compared) != (rollouts, [rollouts]):
        msg = f"{rescoring.rewarded:,} of {rollouts:,} rewarded, {compared} agree with the old ones"
        raise ServicesError(msg)


ROLLOUTS = 6000
TOKENS = 64
RECORDS = 39
"""The records of a rollout: request, start, 17 commands and answers, end, trajectory, score."""
AT_MS = 1_750_000_000_000
FLUSH_EVERY = 200
FLUSH_S = 60.0


def records_per_s(settings: Settings, *, rollouts: int = ROLLOUTS) -> Figure:
    """Measure an audit of `rollouts` rollouts of eight turns."""
    with own_cluster(settings) as cluster:
        fill(cluster, rollouts)
        bare_s, read = timed(lambda: _read(cluster.log, cluster.topics))
        report = audit(cluster, drained=True)
    if not report.ok:
        msg = f"the log that was made for the benchmark breaks: {report.breaches[0].text}"
        raise ServicesError(msg)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    took = f"{report.records:,} records in {report.seconds:.1f} s"
    note = f"{took}, peak memory {peak:,.0f} MB, that of writing them included"
    return Figure(report.records / report.seconds, "records/s", read / bare_s, notes=(note,))


def _read(log: Log, topics: Topics) -> int:
    """Read all records without decoding; return their number."""
    names = [name for name in log.topic_names() if name.startswith(topics.prefix)]
    return sum(1 for _ in read_all(log, names, most=MOST))


def fill(history: History, rollouts: int) -> None:
    """Write whole rollouts; trajectories last, as they contain times of the log."""
    publisher = history.log.publisher(bulk=True)
    writer = Writer(history, publisher)
    for number in range(rollouts):
        writer.rollout(number)
        if number % FLUSH_EVERY == 0:
            publisher.flush(FLUSH_S)
    publisher.flush(FLUSH_S)
    for number, trajectory in enumerate(_trajectories(history)):
        writer.outcome(trajectory)
        if number % FLUSH_EVERY == 0:
            publisher.flush(FLUSH_S)
    publisher.flush(FLUSH_S)


def _trajectories(history: History) -> Iterator[Trajectory]:
    journals: dict[int, Journal] = {}
    for record in read_all(history.log, [history.topics.events], most=MOST):
        journal = journals.setdefault(record.partition, _journal(record.partition))
        event = history.codec.decode(record.value, Event)
        ended = journal.apply_event(event, record.offset, record.timestamp_ms).ended
        if ended is not None:
            yield ended
        journal.watermark(record.offset + 1)


def _journal(partition: int) -> Journal:
    return Journal(partition, FoldContext(program_of, Random), "bench")


class Writer:
    """A writer of the records of rollouts without failures."""

    def __init__(self, history: History, publisher: Publisher) -> None:
        self.codec, self.topics = history.codec, history.topics
        self.publisher = publisher
        partitions = history.log.partitions(self.topics.events)
        self.journals = [_journal(number) for number in range(partitions)]
        self.offsets = [count() for _ in range(partitions)]
        self.requests = [count() for _ in range(partitions)]
        self.player = load.Player(self.codec, TOKENS, self.topics)
        self.digest = program_digest(program_of("react"))
        self.scored_at = [count() for _ in range(partitions)]

    def rollout(self, number: int) -> None:
        """Write request, journal and commands of one rollout."""
        partition = number % len(self.journals)
        request = load.request(f"{number:032x}")
        at = next(self.requests[partition])
        self._send(self.topics.requests, request.rollout_id, request, partition)
        body = RolloutStarted(request, at, at, self.digest)
        start = Event.decision(request.rollout_id, 1, "bench", body)
        pending: deque[Output] = deque(self._append(start, partition))
        while pending:
            output = pending.popleft()
            if isinstance(output, ModelCall | EnvironmentStep):
                self._command(output, partition)
                pending += self._append(self.player.answer(output), partition)
            elif isinstance(output, Event):
                pending += self._append(output, partition)

    def _append(self, event: Event, partition: int) -> Sequence[Output]:
        headers = hot_headers(type(event.body).__name__, event.command_id)
        self._send(self.topics.events, event.rollout_id, event, partition, headers)
        journal, offset = self.journals[partition], next(self.offsets[partition])
        taken = journal.apply_event(event, offset, AT_MS)
        journal.watermark(offset + 1)
        return taken.outputs

    def _command(self, command: ModelCall | EnvironmentStep, partition: int) -> None:
        is_call = isinstance(command, ModelCall)
        topic = self.topics.calls(load.POLICY) if is_call else self.topics.steps
        headers = hot_headers(type(command).__name__, command.command_id)
        self._send(topic, command.rollout_id, command, partition, headers)

    def outcome(self, trajectory: Trajectory) -> None:
        """Write the trajectory of a rollout, and its score."""
        partition, key = trajectory.journal_partition, trajectory.rollout_id
        headers = full_headers("Trajectory", key, "bench", key, key)
        self._send(self.topics.trajectories, key, trajectory, partition, headers)
        place = self.topics.trajectories, partition, next(self.scored_at[partition])
        rewards = (Reward("bench", 1.0),)
        scored = ScoredTrajectory("bench", trajectory, rewards, 1.0, *place)
        headers = full_headers("ScoredTrajectory", key, "bench", key, key)
        self._send(self.topics.scored, key, scored, partition, headers)

    def _send(
        self, topic: str, key: str, message: Any, partition: int, headers: Any = None
    ) -> None:
        value = self.codec.encode(topic, message)
        self.publisher.send(topic, key, value, partition=partition, headers=headers)
