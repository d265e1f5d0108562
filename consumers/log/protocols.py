"""The log as the loop sees it: small protocols behind which Kafka and the in-memory log stand.

An offset that is committed is the next one to read. Nothing here transforms a record; a record is
finished when its handler has closed it and every output that names it as its cause is acked.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Protocol

from consumers.log.epochs import UNKNOWN
from producers.publisher import Publisher
from schemas.headers import Headers

TopicPartition = tuple[str, int]
READ_ANEW = "Restart to read the new one"
"""What to do where a reader's topic was made anew."""


class Record:
    """One record in hand, and how far its outputs have come."""

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
        """Read only when somebody asks, and once: they cost more than the rest of a record."""
        if callable(self._headers):
            self._headers = self._headers()
        return self._headers

    def finished(self) -> bool:
        return self.closed and self.sent == self.acked


@dataclass(frozen=True, slots=True)
class Held:
    """What the log knows about a partition when it is assigned."""

    topic: str
    partition: int
    committed: int | None
    metadata: str
    log_start: int
    log_end: int
    cut: int | None = None
    """From here on the log is another one than the commit speaks of, because records that it counts
    are gone; None where everything below the commit is as it was."""
    topic_id: str = ""
    """The topic's incarnation now."""


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """Where a transaction that somebody holds open keeps readers of committed records back."""

    topic: str
    partition: int
    first: int
    """Readers come so far, the last stable offset."""
    end: int
    """The high watermark: what lies between waits, whoever wrote it."""
    since_ms: int
    """The append time of the transaction's first record; 0 where that is not known."""

    def __str__(self) -> str:
        began = datetime.fromtimestamp(self.since_ms / 1000, UTC)
        since = f" since {began:%Y-%m-%d %H:%M:%S} UTC" if self.since_ms else ""
        named = f"--topic {self.topic} --partition {self.partition}"
        return (
            f"{self.topic} {self.partition}: a producer holds a transaction open{since}, so nobody "
            f"reads offsets {self.first} to {self.end - 1}. `kafka-transactions.sh "
            f"describe-producers {named}` names it, `kafka-transactions.sh abort {named} "
            f"--start-offset {self.first}` ends it; else it ends with its producer's "
            "transaction.timeout.ms"
        )


@dataclass(frozen=True, slots=True)
class Commit:
    """A position to commit: the next offset to read, and a word to whoever reads on from there."""

    topic: str
    partition: int
    offset: int
    metadata: str
    leader_epoch: int = UNKNOWN
    """Of the last record below the offset; a member's commits are given it by their source."""


class Listener(Protocol):
    """Told about partitions, on the thread that polls."""

    def assigned(self, held: Held) -> int:
        """Return the offset to start from."""
        ...

    def revoked(self, partitions: Sequence[TopicPartition]) -> None:
        """Finish and commit what can be; the partitions still belong here until this returns."""
        ...

    def lost(self, partitions: Sequence[TopicPartition]) -> None:
        """Somebody else has them already; drop everything."""
        ...


class Source(Protocol):
    """A member of a consumer group."""

    refused: int
    """Commits that were not taken; normal during a rebalance."""

    def poll(self, timeout_s: float, most: int = 500) -> list[Record]:
        """Return as soon as there is something; only records of partitions owned now."""
        ...

    def ended(self) -> list[tuple[str, int, int]]:
        """Partitions that came to their end in the last poll, and the position there.

        All records below it were delivered, and there is nothing more for now.
        """
        ...

    def commit(self, commits: Sequence[Commit]) -> None:
        """Ask for a commit; a refusal is counted, the next commit carries more."""
        ...

    def commit_now(self, commits: Sequence[Commit]) -> None:
        """Commit and wait for it; refused after a loss."""
        ...

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Give nothing more of these; just after an assignment one poll may still give some."""
        ...

    def resume(self, partitions: Iterable[TopicPartition]) -> None: ...

    def close(self) -> None:
        """Leave the group; `Listener.revoked` runs for what is owned."""
        ...


class Reader(Protocol):
    """A reader of whole topics: every partition, no group, no commits.

    A partition that is added while it reads is read too, from its beginning.
    """

    def poll(self, timeout_s: float, most: int = 500) -> list[Record]:
        """Raises JournalGone where a topic is not the one any more that the reader began with."""
        ...

    def caught_up(self) -> bool:
        """Whether everything that was there when the reader was made has been delivered."""
        ...

    def close(self) -> None: ...


class Log(Protocol):
    """Where clients come from."""

    def source(self, group: str, topics: Sequence[str], listener: Listener) -> Source: ...

    def reader(
        self,
        topics: Sequence[str],
        starts: Mapping[TopicPartition, int] | None = None,
        *,
        from_end: bool = False,
    ) -> Reader:
        """Read from `starts`, elsewhere from the log start, or from the end."""
        ...

    def publisher(self, *, bulk: bool = False) -> Publisher:
        """A producer for commands and answers, or for heavy records that can wait a little."""
        ...

    def partitions(self, topic: str) -> int:
        """Raises TopicsDiffer for a topic that is not there."""
        ...

    def partition_of(self, topic: str, key: bytes) -> int:
        """Return the partition that our producers choose for a key; others may choose another."""
        ...

    def bounds(self, topic: str) -> dict[int, tuple[int, int]]:
        """Of every partition the offset it begins at now and the one it ends before."""
        ...

    def ends(self, topic: str) -> list[Commit]:
        """Where every partition ends now, as positions that `cuts` can be asked about."""
        ...

    def topic_id(self, topic: str) -> str:
        """Names one incarnation of a topic: offsets of another mean nothing in it."""
        ...

    def open_transactions(self, topics: Sequence[str]) -> list[OpenTransaction]:
        """The partitions of which readers get nothing more before a transaction ends."""
        ...

    def topic_names(self) -> list[str]:
        """Every topic there is."""
        ...

    def group_names(self) -> list[str]:
        """Every consumer group that is known."""
        ...

    def committed(self, group: str, topic: str) -> dict[int, int]:
        """What a group has committed on a topic, by partition; nothing where it has not."""
        ...

    def commits(self, group: str, topic: str) -> dict[int, Commit]:
        """The same with the words that were committed with it."""
        ...

    def cuts(self, commits: Sequence[Commit]) -> dict[TopicPartition, int]:
        """Where logs stop to be those that commits speak of; nothing where all below is as it was.

        That is where a tail was lost: by an unclean election, or a disk that was restored.
        """
        ...

    def commit_for(self, group: str, commits: Sequence[Commit]) -> None:
        """Commit in the name of a group that nobody is in; raises Refused where somebody is."""
        ...

    def offsets_for_times(self, topics: Sequence[str], time_ms: int) -> dict[TopicPartition, int]:
        """By partition the first offset whose record is not older; its end where there is none."""
        ...
