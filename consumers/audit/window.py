"""The range of the log that an audit reads and judges, fixed before anything is read.

The commits of the groups are read first, then the ends of the topics against the direction of the
stream, effects before causes: so a record below one end has its cause below another.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from rollcall.consumers.log.protocols import Commit, Log, OpenTransaction, Record, TopicPartition
from rollcall.consumers.log.reading import read_between
from rollcall.consumers.loop.lost_tail import LostTail, lost_tails
from rollcall.consumers.loop.poison_detection import split_metadata
from rollcall.schemas.topics import Topics

MOST = 5000
"""Records of one poll."""
NEVER_MS = 1 << 50
"""A time later than every record, which means the end of a partition."""
FOR_EVER_MS = 1 << 62


@dataclass(frozen=True)
class AuditWindow:
    """The range of the log that is read, and the commits of the groups before it was fixed."""

    ends: Mapping[TopicPartition, int]
    starts: Mapping[TopicPartition, int] = field(default_factory=dict)
    """Partitions that are not read from offset 0."""
    horizon_ms: Mapping[str, int] = field(default_factory=dict)
    """The time before which a topic may lack records: by retention, or since they were not read."""
    first_request: Mapping[int, int] = field(default_factory=dict)
    """The first request to look for, in journal partitions that are not read from offset 0."""
    until_ms: int = 0
    """Later records are not judged; 0 is no limit."""
    commits: Mapping[str, Mapping[TopicPartition, Commit]] = field(default_factory=dict)
    """Commits by group, read before `ends`: so the effects of records below them must be there."""
    log_starts: Mapping[TopicPartition, int] = field(default_factory=dict)
    """The low watermark of every partition."""
    lost: Mapping[str, Sequence[LostTail]] = field(default_factory=dict)
    """Committed records that are gone, by group."""
    held_back: Sequence[OpenTransaction] = ()
    """Open transactions, which hide records from all readers, the audit included."""


class Horizons:
    """The time since when each topic must hold the implied records, in milliseconds."""

    def __init__(self, window: AuditWindow, topics: Topics) -> None:
        self.window = window
        self.topics = topics
        self.steps = window.horizon_ms.get(topics.steps, 0)
        self.trajectories = window.horizon_ms.get(topics.trajectories, 0)
        self._calls: dict[str, int] = {}

    def calls(self, policy_id: str) -> int:
        """Return the time for a policy's calls; a topic that was removed, as after a run's end,
        need not have any."""
        if policy_id not in self._calls:
            topic = self.topics.calls(policy_id)
            there = any(topic == name for name, _ in self.window.ends)
            self._calls[policy_id] = self.window.horizon_ms.get(topic, 0) if there else FOR_EVER_MS
        return self._calls[policy_id]


class AuditRange:
    """The range to read, and its window. Raises Unavailable."""

    def __init__(
        self, log: Log, topics: Topics, names: Sequence[str], since_ms: int, until_ms: int
    ) -> None:
        self.log = log
        self.topics = topics
        said = self._commits(names, past=bool(until_ms))
        lost = {group: lost_tails(log, list(own.values())) for group, own in said.items()}
        commits = {
            group: {
                tp: replace(commit, metadata=split_metadata(commit.metadata)[0])
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
        # A search by time finds the first record that is left, and so would pass over lost ones.
        starts = log.offsets_for_times(names, since_ms) if since_ms else log_starts
        self.starts = {tp: min(at, ends[tp]) for tp, at in starts.items()}
        self.ends = ends
        cut = {tp: at for tp, at in self.starts.items() if at > 0}
        horizon, first_request = self._horizon(cut, since_ms)
        self.window = AuditWindow(
            ends, cut, horizon, first_request, until_ms, commits, log_starts, lost, held_back
        )
        judged = [topic for topic in names if topic != topics.control]
        self.total = sum(at - self.starts[tp] for tp, at in ends.items() if tp[0] in judged)

    def _depth(self, topic: str) -> int:
        """Return the depth of a topic in the stream."""
        known = self.topics
        below = (known.events, known.requests)
        above = (known.trajectories, known.scored, known.train_steps, known.versions)
        if topic in below:
            return -1 - below.index(topic)
        return 1 + above.index(topic) if topic in above else 0

    def _commits(
        self, names: Sequence[str], *, past: bool
    ) -> Mapping[str, Mapping[TopicPartition, Commit]]:
        """Return the commits of every group that reads our topics; past ones are not known."""
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
        """Return the start time of each topic, and the first request of journals read in part."""
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
        """Return the time of the first record that is left of a partition."""
        ends = {each: at for each, at in self.ends.items() if each[0] == tp[0]}
        for records in read_between(self.log, {**ends, tp: offset}, ends, lambda: 1):
            return records[0].timestamp_ms
        return NEVER_MS

    def read(self, stage: Sequence[str]) -> Iterator[list[Record]]:
        """Read some topics from start to end, in order within each partition."""
        starts = {tp: at for tp, at in self.starts.items() if tp[0] in stage}
        ends = {tp: self.ends[tp] for tp in starts}
        yield from read_between(self.log, starts, ends, lambda: MOST)
