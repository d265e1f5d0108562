"""The topics of the in-memory log: records are appended, read, cut, deleted and compacted.

It has the difficult properties of Kafka's topics: offsets with holes, open transactions, truncation
below a position, retention, compaction, and topics that are deleted and made again.
"""

import time
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from rollcall.consumers.log.epochs import Epochs
from rollcall.consumers.log.memory_partition import (
    MemoryPartition,
    MemoryTransaction,
    RawHeaders,
    readable,
)
from rollcall.consumers.log.protocols import Commit, OpenTransaction, Record, TopicPartition
from rollcall.producers.publisher import LETTER_LIMIT_BYTES
from rollcall.schemas.errors import JournalGone, NoTopic, TooLarge, TopicsDiffer, WorkFailed
from rollcall.schemas.topics import WantedTopic


class MemoryTopics:
    """All topics of one in-memory log, without its groups."""

    def __init__(
        self, topics: Iterable[WantedTopic] = (), *, wall: Callable[[], float] = time.time
    ) -> None:
        self.topics: dict[str, list[MemoryPartition]] = {}
        self.incarnations: Counter[str] = Counter()
        self.limits: dict[str, int] = defaultdict(lambda: LETTER_LIMIT_BYTES)
        self.wall = wall
        self.compacted: set[str] = set()
        """Topics without retention: the last record of each key stays."""
        for topic in topics:
            if topic.config.get("cleanup.policy") == "compact":
                self.compacted.add(topic.name)
            self.create(topic.name, topic.partitions)

    def create(self, topic: str, partitions: int) -> None:
        """Create a topic, or add partitions to it."""
        existing = self.topics.setdefault(topic, [])
        existing += [MemoryPartition() for _ in range(partitions - len(existing))]

    def partitions(self, topic: str) -> int:
        return len(self._of(topic))

    def bounds(self, topic: str) -> dict[int, tuple[int, int]]:
        return {number: (held.start, held.stable) for number, held in enumerate(self._of(topic))}

    def ends(self, topic: str) -> list[Commit]:
        return [
            Commit(topic, number, held.stable, "", held.leader())
            for number, held in enumerate(self._of(topic))
        ]

    def topic_id(self, topic: str) -> str:
        return str(self.incarnations[topic])

    def delete(self, topic: str) -> None:
        """Delete a topic for good; publishers with a record for it get an error when they poll."""
        del self.topics[topic]
        self.incarnations[topic] += 1

    def limit(self, topic: str, value_bytes: int) -> None:
        """Set the size of the largest value that a topic takes, in bytes."""
        self.limits[topic] = value_bytes

    def refusal(self, topic: str, value: bytes | None) -> WorkFailed | None:
        """Return the error for a value that the topic does not take, else None."""
        if topic not in self.topics:
            return NoTopic(topic, "it is not there")
        size_bytes = len(value or b"")
        return TooLarge(topic, size_bytes) if size_bytes > self.limits[topic] else None

    def recreate(self, topic: str) -> None:
        """Delete a topic and create it again."""
        count = self.partitions(topic)
        self.topics[topic] = [MemoryPartition() for _ in range(count)]
        self.incarnations[topic] += 1

    def _of(self, topic: str) -> list[MemoryPartition]:
        if topic not in self.topics:
            msg = f"topic {topic!r} is not there; known are {', '.join(sorted(self.topics))}"
            raise TopicsDiffer(msg)
        return self.topics[topic]

    def append(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        partition: int | None = None,
        headers: RawHeaders | None = None,
    ) -> tuple[int, int]:
        """Write one record; return its partition and offset."""
        held = self._of(topic)
        number = self.partition_of(topic, key or b"") if partition is None else partition
        held[number].append((key, value, int(self.wall() * 1000), headers))
        return number, held[number].end - 1

    def partition_of(self, topic: str, key: bytes) -> int:
        """Return the partition of a record that states only this key."""
        return zlib.crc32(key) % len(self._of(topic))

    def hole(self, topic: str, partition: int) -> None:
        """Use up one offset without a record, as a transaction marker does."""
        self._of(topic)[partition].append(None)

    def transaction(
        self, topic: str, values: Iterable[bytes], partition: int = 0, key: bytes = b"key"
    ) -> MemoryTransaction:
        """Write records in a transaction that stays open until it is committed or aborted."""
        opened = MemoryTransaction(self._of(topic)[partition])
        for value in values:
            opened.append((key, value, int(self.wall() * 1000), None))
        return opened

    def open_transactions(self, topics: Sequence[str]) -> list[OpenTransaction]:
        """Return the places where readers are held back."""
        return [
            OpenTransaction(topic, number, held.stable, held.end, held.time_ms(held.stable))
            for topic in topics
            for number, held in enumerate(self._of(topic))
            if held.stable < held.end
        ]

    def truncate(self, topic: str, partition: int, offset: int) -> None:
        """Lose the records from an offset on; a new leader continues from there."""
        self._of(topic)[partition].cut(offset)

    def cut(self, commit: Commit) -> int | None:
        """Return the offset at which a log diverges from a commit, or None."""
        held = self._of(commit.topic)[commit.partition]
        end = min(held.end_of(commit.leader_epoch), held.end)
        return end if end < commit.offset else None

    def cuts(self, commits: Sequence[Commit]) -> dict[TopicPartition, int]:
        cuts = {(commit.topic, commit.partition): self.cut(commit) for commit in commits}
        return {tp: at for tp, at in cuts.items() if at is not None}

    def delete_before(self, topic: str, partition: int, offset: int) -> None:
        """Let retention pass an offset; compacted topics lose nothing."""
        held = self._of(topic)[partition]
        if topic in self.compacted:
            return
        del held.records[: offset - held.start]
        held.start = offset

    def compact(self, topic: str, partition: int = 0, *, tombstones: bool = False) -> None:
        """Compact a partition: of every key the last record stays, and no record without a key.

        With `tombstones`, tombstones go too, as they do a day later.
        """
        held = self._of(topic)[partition]
        last = {stored[0]: at for at, stored in enumerate(held.records) if stored is not None}
        for at, stored in enumerate(held.records):
            if stored is None:
                continue
            key, value, *_ = stored
            if key is None or last[key] != at or (tombstones and value is None):
                held.records[at] = None

    def read(self, topic: str, partition: int, offset: int, most: int) -> tuple[list[Record], int]:
        """Return records from an offset on, and the position after them."""
        held = self._of(topic)[partition]
        at = max(offset, held.start)
        records: list[Record] = []
        # Records behind an open transaction are hidden, as they are with `read_committed`.
        while at < held.stable and len(records) < most:
            stored = held.records[at - held.start]
            if stored is not None:
                key, value, timestamp_ms, headers = stored
                read_headers = None if headers is None else partial(readable, headers)
                epoch = held.epoch_at(at)
                records.append(
                    Record(topic, partition, at, key, value, timestamp_ms, read_headers, epoch)
                )
            at += 1
        return records, at

    def read_on(
        self, topic: str, partition: int, offset: int, most: int, epochs: Epochs
    ) -> tuple[list[Record], int]:
        """Read like a client that stands at `offset`: it must not skip lost records.

        Raises JournalGone.
        """
        start = self._of(topic)[partition].start
        if offset < start:
            raise JournalGone(_gone(topic, partition, f"it begins at {start}, not at {offset}"))
        cut = self.cut(Commit(topic, partition, offset, "", epochs.before(offset)))
        if cut is not None:
            raise JournalGone(_gone(topic, partition, f"it was cut at {cut}, below {offset}"))
        records, position = self.read(topic, partition, offset, most)
        for record in records:
            epochs.saw(record.offset, record.leader_epoch)
        return records, position

    def all(self, topic: str) -> list[Record]:
        """Return all records of a topic, partition by partition."""
        return [
            record
            for number, held in enumerate(self._of(topic))
            for record in self.read(topic, number, held.start, len(held.records))[0]
        ]

    def topic_names(self) -> list[str]:
        return sorted(self.topics)

    def offsets_for_times(self, topics: Sequence[str], time_ms: int) -> dict[TopicPartition, int]:
        """Return by partition the first offset not older than a time; the end if there is none."""
        return {
            (topic, number): self._at_time(held, time_ms)
            for topic in topics
            for number, held in enumerate(self._of(topic))
        }

    def _at_time(self, held: MemoryPartition, time_ms: int) -> int:
        for at, stored in enumerate(held.records, held.start):
            if at < held.stable and stored is not None and stored[2] >= time_ms:
                return at
        return held.stable


def _gone(topic: str, partition: int, why: str) -> str:
    return (
        f"reading {topic} {partition} failed: {why}. To continue from what is left, restart with "
        "--accept-truncation"
    )
