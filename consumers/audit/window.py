"""The stretch of the log that an audit reads and judges: settled once, before anything is read.

What the groups have committed is asked first, then the ends of the topics against the stream,
effects before causes: so whatever lies below an end has its cause below another.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from consumers.log.protocols import Commit, Log, OpenTransaction, Record, TopicPartition
from consumers.log.reading import read_between
from consumers.loop.lost_tail import LostTail, lost_tails
from consumers.loop.suspects import parted
from schemas.topics import Topics

MOST = 5000
"""Records of one poll."""
NEVER_MS = 1 << 50
"""A time that no record has: what is first then lies at the end."""
FOR_EVER_MS = 1 << 62


@dataclass(frozen=True)
class Window:
    """Which part of the log is read, and how far the groups had come before that was settled."""

    ends: Mapping[TopicPartition, int]
    starts: Mapping[TopicPartition, int] = field(default_factory=dict)
    """Partitions that are not read from offset 0."""
    horizon_ms: Mapping[str, int] = field(default_factory=dict)
    """Before this a topic may lack records: retention took them, or nobody asked for them."""
    first_request: Mapping[int, int] = field(default_factory=dict)
    """Of journal partitions that are not read from 0: no earlier request is looked for."""
    until_ms: int = 0
    """Later records are not judged; 0 is no limit."""
    commits: Mapping[str, Mapping[TopicPartition, Commit]] = field(default_factory=dict)
    """By group, read before `ends`: so what lies below must have had its effects."""
    log_starts: Mapping[TopicPartition, int] = field(default_factory=dict)
    """Where every partition begins now: retention has taken what lay before."""
    lost: Mapping[str, Sequence[LostTail]] = field(default_factory=dict)
    """By group, what its commits count that is gone."""
    held_back: Sequence[OpenTransaction] = ()
    """Where open transactions keep readers, this one too, from what was written."""


class Horizons:
    """Since when the topics must hold what the journal implies, in milliseconds."""

    def __init__(self, window: Window, topics: Topics) -> None:
        self.window = window
        self.topics = topics
        self.steps = window.horizon_ms.get(topics.steps, 0)
        self.trajectories = window.horizon_ms.get(topics.trajectories, 0)
        self._calls: dict[str, int] = {}

    def calls(self, policy_id: str) -> int:
        """Of a policy's calls; a topic that was removed, as that of a run that is over is, has none
        of them."""
        if policy_id not in self._calls:
            topic = self.topics.calls(policy_id)
            there = any(topic == name for name, _ in self.window.ends)
            self._calls[policy_id] = self.window.horizon_ms.get(topic, 0) if there else FOR_EVER_MS
        return self._calls[policy_id]


class AuditedStretch:
    """What is read, and the window that it makes; raises Unavailable."""

    def __init__(
        self, log: Log, topics: Topics, names: Sequence[str], since_ms: int, until_ms: int
    ) -> None:
        self.log = log
        self.topics = topics
        said = self._commits(names, past=bool(until_ms))
        lost = {group: lost_tails(log, list(own.values())) for group, own in said.items()}
        commits = {
            group: {
                tp: replace(commit, metadata=parted(commit.metadata)[0])
                for tp, commit in own.items()
            }
            for group, own in said.items()
        }
        order = sorted(names, key=self._depth, reverse=True)
        ends: dict[TopicPartition, int] = {}
        log_starts: dict[TopicPartition, int] = {}
        for topic in order:
            for number, (low, end) in log.bounds(topic).items():
                ends[topic, number] = end
                log_starts[topic, number] = low
        held_back = () if until_ms else log.open_transactions(names)
        if until_ms:
            for topic in (topics.requests, topics.events):
                ends |= log.offsets_for_times([topic], until_ms)
        # By time the first record is found, and what is lost before it would be passed over.
        starts = log.offsets_for_times(names, since_ms) if since_ms else log_starts
        self.starts = {tp: min(at, ends[tp]) for tp, at in starts.items()}
        self.ends = ends
        cut = {tp: at for tp, at in self.starts.items() if at > 0}
        horizon, first_request = self._horizon(cut, since_ms)
        self.window = Window(
            ends, cut, horizon, first_request, until_ms, commits, log_starts, lost, held_back
        )
        judged = [topic for topic in names if topic != topics.control]
        self.total = sum(at - self.starts[tp] for tp, at in ends.items() if tp[0] in judged)

    def _depth(self, topic: str) -> int:
        """How far down the stream a topic lies."""
        known = self.topics
        below = (known.events, known.requests)
        above = (known.trajectories, known.scored, known.train_steps, known.versions)
        if topic in below:
            return -1 - below.index(topic)
        return 1 + above.index(topic) if topic in above else 0

    def _commits(
        self, names: Sequence[str], *, past: bool
    ) -> Mapping[str, Mapping[TopicPartition, Commit]]:
        """What every group that reads our topics has committed; of a past moment nobody knows."""
        topics, calls = self.topics, self.topics.calls("")
        reads = {topics.group("agents"): [topics.events] + [topics.requests] * (not past)}
        if not past:
            reads[topics.group("environments")] = [topics.steps]
            for topic in names:
                if topic.startswith(calls):
                    reads[topics.group("models", topic.removeprefix(calls))] = [topic]
            for group in self.log.group_names():
                if group.startswith(topics.group("rewards", "")):
                    reads[group] = [topics.trajectories]
        return {
            group: {
                (topic, partition): commit
                for topic in own
                if topic in names
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
                requests = self.log.offsets_for_times([self.topics.requests], after_ms)
                first_request[partition] = requests.get((self.topics.requests, partition), 0)
        return horizon, first_request

    def _first_ms(self, tp: TopicPartition, offset: int) -> int:
        """When the first record that is left of a partition was written."""
        ends = {each: at for each, at in self.ends.items() if each[0] == tp[0]}
        for records in read_between(self.log, {**ends, tp: offset}, ends, lambda: 1):
            return records[0].timestamp_ms
        return NEVER_MS

    def read(self, stage: Sequence[str]) -> Iterator[list[Record]]:
        """The records of some topics, from start to end, in order within each partition."""
        starts = {tp: at for tp, at in self.starts.items() if tp[0] in stage}
        ends = {tp: self.ends[tp] for tp in starts}
        yield from read_between(self.log, starts, ends, lambda: MOST)
