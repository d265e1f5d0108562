"""`rollcall verify`: read the log, and say whether the invariants hold.

Nothing is disturbed: no group is joined, nothing is committed or written. What the groups have
committed is asked first, then the ends of the topics against the stream, effects before causes:
so whatever lies below an end has its cause below another.
"""

import gc
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from random import Random
from typing import TYPE_CHECKING

from compose.here import watched_world
from consumers.agents.fold.world import World
from consumers.agents.programs import program_of
from consumers.agents.worker import program_digest
from consumers.audit.audit import Audit
from consumers.audit.report import Breach, Report
from consumers.audit.window import Window
from consumers.log.protocols import Commit, Log, Record, TopicPartition
from consumers.log.reading import read_all, read_between
from consumers.loop.dead_letters import passed_in_journal
from consumers.loop.loop import COLLECT
from consumers.loop.suspects import parted
from schemas.codec import Codec
from schemas.errors import Refused
from schemas.messages import RolloutStarted
from schemas.topics import Topics

if TYPE_CHECKING:
    from compose.cluster import Cluster

__all__ = ["Breach", "Report", "audit", "verify"]

MOST = 5000
NEVER_MS = 1 << 50
"""A time that no record has: what is first then lies at the end."""

Progress = Callable[[int, int], None]
"""Told how many records are read, and how many there are at most."""


def verify(
    cluster: "Cluster",
    *,
    since_ms: int = 0,
    until_ms: int = 0,
    drained: bool = False,
    most_repeated: int | None = None,
    most_rewritten: int | None = None,
    scorings: Sequence[str] | None = None,
    run_programs: bool = True,
    progress: Progress = lambda done, total: None,
) -> Report:
    """Audit what is on a cluster's topics, with the programs that can be loaded here."""
    world = watched_world(cluster)
    return audit(
        cluster.log,
        cluster.codec,
        cluster.topics,
        world,
        since_ms=since_ms,
        until_ms=until_ms,
        drained=drained,
        most_repeated=most_repeated,
        most_rewritten=most_rewritten,
        scorings=scorings,
        run_programs=run_programs,
        progress=progress,
    )


def audit(
    log: Log,
    codec: Codec,
    topics: Topics,
    world: World | None = None,
    *,
    since_ms: int = 0,
    until_ms: int = 0,
    drained: bool = False,
    most_repeated: int | None = None,
    most_rewritten: int | None = None,
    scorings: Sequence[str] | None = None,
    run_programs: bool = True,
    progress: Progress = lambda done, total: None,
) -> Report:
    """Audit a log, Kafka's or the one in memory."""
    began = time.monotonic()
    world = world or World(program_of, Random)
    there = [name for name in log.topic_names() if name.startswith(topics.prefix)]
    span = _Span(log, topics, there, since_ms, until_ms)
    case = Audit(
        codec.writing_whole(),
        topics,
        world,
        span.window,
        runnable=_runnable(world) if run_programs else lambda body: False,
        drained=drained,
        most_repeated=most_repeated,
        most_rewritten=most_rewritten,
        scorings=scorings,
    )
    passed = passed_in_journal(log, topics)
    with _seldom_collected():
        done = 0
        for stage in case.stages(there):
            for records in span.read(stage):
                case.take(passed.counted(records))
                done += len(records)
                progress(done, span.total)
            case.stage_ended(stage)
        report = case.finish()
    report.seconds = time.monotonic() - began
    return report


@contextmanager
def _seldom_collected() -> Iterator[None]:
    """Let Python walk through live rollouts as seldom as a worker does."""
    before = gc.get_threshold()
    gc.set_threshold(*COLLECT)
    try:
        yield
    finally:
        gc.set_threshold(*before)


def _runnable(world: World) -> Callable[[RolloutStarted], bool]:
    """Whether the program that a rollout began with is here, and is still the same."""

    @cache
    def here(agent: str) -> str | None:
        try:
            return program_digest(world.program_of(agent))
        except Refused:
            return None

    def runnable(body: RolloutStarted) -> bool:
        digest = here(body.request.agent)
        return digest is not None and (
            not digest or not body.program_digest or digest == body.program_digest
        )

    return runnable


class _Span:
    """The stretch of the log that is read: settled once, before anything is."""

    def __init__(
        self, log: Log, topics: Topics, there: Sequence[str], since_ms: int, until_ms: int
    ) -> None:
        self.log = log
        self.topics = topics
        commits = self._commits(there, past=bool(until_ms))
        order = sorted(there, key=self._depth, reverse=True)
        ends: dict[TopicPartition, int] = {}
        for topic in order:
            ends |= {(topic, number): end for number, (_, end) in log.bounds(topic).items()}
        if until_ms:
            for topic in (topics.requests, topics.events):
                ends |= log.offsets_for_times([topic], until_ms)
        starts = log.offsets_for_times(there, since_ms)
        self.starts = {tp: min(at, ends[tp]) for tp, at in starts.items()}
        self.ends = ends
        cut = {tp: at for tp, at in self.starts.items() if at > 0}
        horizon, first_request = self._horizon(cut, since_ms)
        self.window = Window(ends, cut, horizon, first_request, until_ms, commits)
        read = [topic for topic in there if topic not in (topics.versions, topics.control)]
        self.total = sum(at - self.starts[tp] for tp, at in ends.items() if tp[0] in read)

    def _depth(self, topic: str) -> int:
        """How far down the stream a topic lies."""
        known = self.topics
        below = (known.events, known.requests)
        above = (known.trajectories, known.scored, known.train_steps)
        if topic in below:
            return -1 - below.index(topic)
        return 1 + above.index(topic) if topic in above else 0

    def _commits(
        self, there: Sequence[str], *, past: bool
    ) -> Mapping[str, Mapping[TopicPartition, Commit]]:
        """What every group that reads our topics has committed; of a past moment nobody knows."""
        topics, calls = self.topics, self.topics.calls("")
        reads = {topics.group("agents"): [topics.events] + [topics.requests] * (not past)}
        if not past:
            reads[topics.group("environments")] = [topics.steps]
            for topic in there:
                if topic.startswith(calls):
                    reads[topics.group("models", topic.removeprefix(calls))] = [topic]
            for group in self.log.group_names():
                if group.startswith(topics.group("rewards", "")):
                    reads[group] = [topics.trajectories]
        return {
            group: {
                (topic, partition): replace(commit, metadata=parted(commit.metadata)[0])
                for topic in own
                if topic in there
                for partition, commit in self.log.commits(group, topic).items()
            }
            for group, own in reads.items()
        }

    def _horizon(
        self, cut: Mapping[TopicPartition, int], since_ms: int
    ) -> tuple[dict[str, int], dict[int, int]]:
        """When what is read of each topic begins; of journals that are cut, the first request."""
        firsts = {tp: since_ms or self._first_ms(tp, at) for tp, at in cut.items()}
        horizon: dict[str, int] = {}
        first_request = {}
        for (topic, partition), at_ms in firsts.items():
            horizon[topic] = max(horizon.get(topic, 0), at_ms)
            if topic == self.topics.events:
                # A request later than the first entry that is left cannot have begun before it.
                after_ms = at_ms if since_ms else at_ms + 1
                asked = self.log.offsets_for_times([self.topics.requests], after_ms)
                first_request[partition] = asked.get((self.topics.requests, partition), 0)
        return horizon, first_request

    def _first_ms(self, tp: TopicPartition, offset: int) -> int:
        """When the first record that is left of a partition was written."""
        ends = {each: at for each, at in self.ends.items() if each[0] == tp[0]}
        for record in read_all(self.log, [tp[0]], {**ends, tp: offset}, most=1):
            if record.partition == tp[1]:
                return record.timestamp_ms
        return NEVER_MS

    def read(self, stage: Sequence[str]) -> Iterator[list[Record]]:
        """The records of some topics, from start to end, in order within each partition."""
        starts = {tp: at for tp, at in self.starts.items() if tp[0] in stage}
        ends = {tp: self.ends[tp] for tp in starts}
        yield from read_between(self.log, starts, ends, lambda: MOST)
