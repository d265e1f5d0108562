"""The interface of the log: small protocols that Kafka and the in-memory log implement.

A committed offset is the next one to read. The log never changes a record; a record is finished
when its handler has closed it and every output that it caused is acked.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Protocol

from rollcall.consumers.log.epochs import UNKNOWN
from rollcall.producers.publisher import Publisher
from rollcall.schemas.headers import Headers

TopicPartition = tuple[str, int]
READ_ANEW = "Restart to read the new one"
"""The remedy if a reader's topic was recreated."""


class Record:
    """One record in flight, with the numbers of outputs that it has caused and that are acked."""

    __slots__ = (
        "_headers",
        "acked",
        "closed",
        "key",
        "leader_epoch",
        "offset",
        "partition",
        "sent",
        "timestamp_ms",
        "topic",
        "value",
    )

    def __init__(
        self,
        topic: str,
        partition: int,
        offset: int,
        key: bytes | None,
        value: bytes | None,
        timestamp_ms: int,
        headers: "Headers | Callable[[], Headers | None] | None" = None,
        leader_epoch: int = UNKNOWN,
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.offset = offset
        self.key = key
        self.value = value
        self.timestamp_ms = timestamp_ms
        self._headers = headers
        self.leader_epoch = leader_epoch
        self.sent = 0
        self.acked = 0
        self.closed = False

    @property
    def headers(self) -> Headers | None:
        """The headers, decoded on first use only: they cost more than the rest of a record."""
        if callable(self._headers):
            self._headers = self._headers()
        return self._headers

    def finished(self) -> bool:
        return self.closed and self.sent == self.acked


@dataclass(frozen=True, slots=True)
class Held:
    """The log's state of a partition when it is assigned."""

    topic: str
    partition: int
    committed: int | None
    metadata: str
    log_start: int
    log_end: int
    cut: int | None = None
    """The offset from which the log differs from the one committed, because counted records are
    gone; None if everything below the commit is unchanged."""
    topic_id: str = ""
    """The id of the topic's present incarnation."""


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """A place where an open transaction holds back readers of committed records."""

    topic: str
    partition: int
    first: int
    """The last stable offset, up to which readers come."""
    end: int
    """The high watermark: records of all producers between the two wait."""
    since_ms: int
    """The append time of the transaction's first record; 0 if it is not known."""

    def __str__(self) -> str:
        began = datetime.fromtimestamp(self.since_ms / 1000, UTC)
        since = f" since {began:%Y-%m-%d %H:%M:%S} UTC" if self.since_ms else ""
        named = f"--topic {self.topic} --partition {self.partition}"
        return (
            f"{self.topic} {self.partition}: a producer holds a transaction open{since}, which "
            f"hides offsets {self.first} to {self.end - 1} from readers. `kafka-transactions.sh "
            f"describe-producers {named}` names it, `kafka-transactions.sh abort {named} "
            f"--start-offset {self.first}` ends it; else it ends with its producer's "
            "transaction.timeout.ms"
        )


@dataclass(frozen=True, slots=True)
class Commit:
    """A position to commit: the next offset to read, and metadata for the next owner."""

    topic: str
    partition: int
    offset: int
    metadata: str
    leader_epoch: int = UNKNOWN
    """The epoch of the last record below the offset; sources fill it in for members."""


class Listener(Protocol):
    """Callbacks about partitions, on the thread that polls."""

    def assigned(self, held: Held) -> int:
        """Take over a partition; return the offset to start from."""
        ...

    def revoked(self, partitions: Sequence[TopicPartition]) -> None:
        """Finish and commit as much as possible; the partitions are still
        owned until this returns."""
        ...

    def lost(self, partitions: Sequence[TopicPartition]) -> None:
        """Drop everything: the partitions have another owner already."""
        ...


class Source(Protocol):
    """A member of a consumer group."""

    refused: int
    """The number of refused commits; some are normal during a rebalance."""

    def poll(self, timeout_s: float, most: int = 500) -> list[Record]:
        """Return as soon as there are records; only those of partitions owned now."""
        ...

    def ended(self) -> list[tuple[str, int, int]]:
        """Return partitions that came to their end in the last poll, with the position there.

        All records below it were delivered, and there are no more for now.
        """
        ...

    def commit(self, commits: Sequence[Commit]) -> None:
        """Request a commit; a refusal is counted, and the next commit includes it."""
        ...

    def commit_now(self, commits: Sequence[Commit]) -> None:
        """Commit and wait; refused after a loss."""
        ...

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Pause partitions; just after an assignment one poll may still return records."""
        ...

    def resume(self, partitions: Iterable[TopicPartition]) -> None: ...

    def close(self) -> None:
        """Leave the group; `Listener.revoked` is called for the owned partitions."""
        ...


class Reader(Protocol):
    """A reader of whole topics: every partition, no group, no commits.

    A partition that is added while it reads is read too, from its beginning.
    """

    def poll(self, timeout_s: float, most: int = 500) -> list[Record]:
        """Read records. Raises JournalGone if a topic was recreated since the reader began."""
        ...

    def caught_up(self) -> bool:
        """Return True if all records that existed when the reader was made have been delivered."""
        ...

    def close(self) -> None: ...


class Log(Protocol):
    """A factory of clients, and queries about topics and groups."""

    def source(self, group: str, topics: Sequence[str], listener: Listener) -> Source: ...

    def reader(
        self,
        topics: Sequence[str],
        starts: Mapping[TopicPartition, int] | None = None,
        *,
        from_end: bool = False,
    ) -> Reader:
        """Return a reader from `starts`, elsewhere from the log start, or from the end."""
        ...

    def publisher(self, *, bulk: bool = False) -> Publisher:
        """Return a producer for commands and answers, or a bulk one for
        heavy records that can wait."""
        ...

    def partitions(self, topic: str) -> int:
        """Return the number of partitions. Raises TopicsDiffer for a missing topic."""
        ...

    def partition_of(self, topic: str, key: bytes) -> int:
        """Return the partition that our producers choose for a key; others may choose another."""
        ...

    def bounds(self, topic: str) -> dict[int, tuple[int, int]]:
        """Return the first offset and the end of every partition."""
        ...

    def ends(self, topic: str) -> list[Commit]:
        """Return the end of every partition, as positions to be passed to `cuts` later."""
        ...

    def topic_id(self, topic: str) -> str:
        """Return the id of a topic's incarnation: offsets are valid for one incarnation."""
        ...

    def open_transactions(self, topics: Sequence[str]) -> list[OpenTransaction]:
        """Return the partitions whose readers get no more records before a transaction ends."""
        ...

    def topic_names(self) -> list[str]:
        """Return all topics."""
        ...

    def group_names(self) -> list[str]:
        """Return all known consumer groups."""
        ...

    def committed(self, group: str, topic: str) -> dict[int, int]:
        """Return the commits of a group on a topic, by partition; partitions
        without one are left out."""
        ...

    def commits(self, group: str, topic: str) -> dict[int, Commit]:
        """Like `committed`, with metadata and epoch."""
        ...

    def cuts(self, commits: Sequence[Commit]) -> dict[TopicPartition, int]:
        """Return the offsets at which logs diverge from commits; empty if all are unchanged.

        A log diverges if its tail was lost: by an unclean election, or a restored disk.
        """
        ...

    def commit_for(self, group: str, commits: Sequence[Commit]) -> None:
        """Commit for a group without members; raises Refused if it has some."""
        ...

    def offsets_for_times(self, topics: Sequence[str], time_ms: int) -> dict[TopicPartition, int]:
        """Return by partition the first offset not older than a time; the end if there is none."""
        ...
