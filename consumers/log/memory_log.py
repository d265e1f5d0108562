"""The in-memory log: Kafka's semantics in one process, for tests and for `--log memory`.

It has the properties that the loop relies on and the difficult ones: offsets with holes, redelivery
after a kill, groups that move partitions while work is in flight, commit metadata, refused commits,
truncation below a position, records of a zombie. If it differs from the real log, it is wrong.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence

from rollcall.consumers.log.epochs import Epochs
from rollcall.consumers.log.memory_source import MemoryGroup, MemorySource
from rollcall.consumers.log.memory_topics import MemoryTopics
from rollcall.consumers.log.protocols import READ_ANEW, Commit, Listener, Record, TopicPartition
from rollcall.producers.publisher import Cause, Outgoing, Publisher
from rollcall.schemas.errors import DeliveryFailed, JournalGone, Refused, Unfit, WorkFailed
from rollcall.schemas.topics import WantedTopic


class MemoryPublisher(Publisher):
    """Writes at once; acks are counted at the next poll, or withheld by `hold_acks`."""

    def __init__(self, log: MemoryTopics) -> None:
        self.log = log
        self.hold_acks = False
        self.acked_ms = 0
        self._unacked: list[tuple[Cause | None, int]] = []
        self._refused: list[tuple[WorkFailed, Outgoing]] = []

    def _put(self, outgoing: Outgoing) -> None:
        topic, key, value = outgoing.topic, outgoing.key, outgoing.value
        error = self.log.refusal(topic, value)
        if error is not None:
            self._refused.append((error, outgoing))
            return
        raw = key.encode() if isinstance(key, str) else key
        self.log.append(topic, raw, value, outgoing.partition, outgoing.headers)
        self._unacked.append((outgoing.cause, int(self.log.wall() * 1000)))

    def push(self) -> None:
        """Do nothing: records are not batched here."""

    def poll(self) -> None:
        if self.hold_acks:
            return
        for cause, append_ms in self._unacked:
            self.acked_ms = append_ms
            if cause is not None:
                cause.acked += 1
        self._unacked.clear()
        refused, self._refused = self._refused, []
        for error, outgoing in refused:
            if outgoing.refused is None:
                msg = f"a record was refused, and nothing can be written instead: {error}"
                raise DeliveryFailed(msg)
            outgoing.refused(error)
            if outgoing.cause is not None:
                outgoing.cause.acked += 1

    def flush(self, timeout_s: float) -> int:
        del timeout_s
        self.poll()
        if self.waiting():  # a replacement of a refused record
            self.poll()
        return self.waiting()

    def waiting(self) -> int:
        return len(self._unacked) + len(self._refused)


class MemoryReader:
    """Reads every partition of some topics from given positions."""

    def __init__(
        self,
        log: MemoryTopics,
        topics: Sequence[str],
        starts: Mapping[TopicPartition, int],
        *,
        from_end: bool = False,
    ) -> None:
        self.log = log
        self.topics = list(topics)
        self.positions: dict[TopicPartition, int] = {}
        self._ids = {topic: log.topic_id(topic) for topic in topics}
        self._ends: dict[TopicPartition, int] = {}
        self._epochs: defaultdict[TopicPartition, Epochs] = defaultdict(Epochs)
        for topic in topics:
            for number in range(log.partitions(topic)):
                partition = log.topics[topic][number]
                default = partition.stable if from_end else partition.start
                start = starts.get((topic, number), default)
                if start < partition.start:
                    msg = f"{topic} {number} begins at {partition.start}; offset {start} is gone"
                    raise Unfit(msg)
                if start > partition.end:
                    msg = f"{topic} {number} ends at {partition.end}; offset {start} is not there"
                    raise Unfit(msg)
                self.positions[topic, number] = start
                self._ends[topic, number] = partition.stable

    def poll(self, timeout_s: float, most: int = 500) -> list[Record]:
        del timeout_s
        records: list[Record] = []
        for topic in self.topics:
            if self.log.topic_id(topic) != self._ids[topic]:
                msg = f"{topic} was deleted and made anew while it was read. {READ_ANEW}"
                raise JournalGone(msg)
            for number in range(self.log.partitions(topic)):
                # Read partitions that were added since, from their beginning.
                self.positions.setdefault((topic, number), self.log.topics[topic][number].start)
        for tp, position in self.positions.items():
            read, self.positions[tp] = self.log.read_on(
                *tp, position, most - len(records), self._epochs[tp]
            )
            records += read
        return records

    def caught_up(self) -> bool:
        return all(self.positions[tp] >= end for tp, end in self._ends.items())

    def close(self) -> None:
        self.topics.clear()
        self.positions.clear()


class MemoryLog(MemoryTopics):
    """Topics, groups and commits, in this process; not thread-safe."""

    def __init__(
        self, topics: Iterable[WantedTopic] = (), *, wall: Callable[[], float] = time.time
    ) -> None:
        super().__init__(topics, wall=wall)
        self.groups: dict[str, MemoryGroup] = {}

    def recreate(self, topic: str) -> None:
        """Delete a topic and create it again; the groups' commits on it are deleted too."""
        super().recreate(topic)
        for group in self.groups.values():
            group.committed = {tp: at for tp, at in group.committed.items() if tp[0] != topic}

    def group_names(self) -> list[str]:
        return sorted(self.groups)

    def committed(self, group: str, topic: str) -> dict[int, int]:
        """Return the commits of a group on a topic, by partition; partitions
        without one are left out."""
        return {number: commit.offset for number, commit in self.commits(group, topic).items()}

    def commits(self, group: str, topic: str) -> dict[int, Commit]:
        """Like `committed`, with metadata and epoch."""
        if group not in self.groups:
            return {}
        committed = self.groups[group].committed
        return {tp[1]: self.groups[group].commit_of(tp) for tp in committed if tp[0] == topic}

    def commit_for(self, group: str, commits: Sequence[Commit]) -> None:
        """Commit for a group without members; raises Refused if it has some."""
        held = self.group(group)
        if held.members:
            msg = f"group {group!r} has members, which alone may commit for it; stop them"
            raise Refused(msg)
        for commit in commits:
            held.record_commit(commit)

    def group(self, name: str) -> MemoryGroup:
        return self.groups.setdefault(name, MemoryGroup())

    def source(self, group: str, topics: Sequence[str], listener: Listener) -> MemorySource:
        for topic in topics:
            self.partitions(topic)
        return MemorySource(self, self.group(group), topics, listener)

    def reader(
        self,
        topics: Sequence[str],
        starts: Mapping[TopicPartition, int] | None = None,
        *,
        from_end: bool = False,
    ) -> MemoryReader:
        return MemoryReader(self, topics, starts or {}, from_end=from_end)

    def publisher(self, *, bulk: bool = False) -> Publisher:
        del bulk
        return MemoryPublisher(self)
