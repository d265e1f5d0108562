"""The interface for writing to the log: a Kafka producer, or the log in memory."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from rollcall.schemas.errors import DeliveryFailed, TooLarge, WorkFailed
from rollcall.schemas.headers import Headers

VALUE_LIMIT_BYTES = 1_000_000
"""The largest value: below topics' max.message.bytes, with room for key, headers and batch."""
LETTER_LIMIT_BYTES = 2_000_000


class Cause(Protocol):
    """A record in hand, which waits for acks of its outputs."""

    sent: int
    acked: int


@dataclass(slots=True)
class Outgoing:
    """One record to be written, with the callback for its failure."""

    topic: str
    key: str | bytes | None
    value: bytes | None
    partition: int | None = None
    headers: Headers | None = None
    cause: Cause | None = None
    refused: Callable[[WorkFailed], None] | None = None
    alone: bool = False
    """True if it is tried once more, by itself."""


class Publisher(ABC):
    """Writes records. Acks are counted when `poll` runs, on the caller's thread."""

    acked_ms: int = 0
    """Append time of the record acked last; 0 before the first."""

    def send(
        self,
        topic: str,
        key: str | bytes | None,
        value: bytes | None,
        *,
        partition: int | None = None,
        headers: Headers | None = None,
        cause: Cause | None = None,
        refused: Callable[[WorkFailed], None] | None = None,
    ) -> None:
        """Hand a record over. Raises TooLarge for a value that no topic would take.

        `refused` is called by `poll` or `flush` if the topic refuses the record: it is gone, or its
        limit was lowered. A record that the callback sends replaces it. Without a callback,
        `poll` raises DeliveryFailed.
        """
        if value is not None and len(value) > VALUE_LIMIT_BYTES:
            _check_size(topic, len(value))
        if cause is not None:
            cause.sent += 1
        self._put(Outgoing(topic, key, value, partition, headers, cause, refused))

    @abstractmethod
    def _put(self, outgoing: Outgoing) -> None:
        """Write a record, or queue it."""

    @abstractmethod
    def push(self) -> None:
        """Send queued records now; `poll` and `flush` do so too. Any thread may call it."""

    @abstractmethod
    def poll(self) -> None:
        """Count acks. Raises DeliveryFailed if a record was given up."""

    @abstractmethod
    def flush(self, timeout_s: float) -> int:
        """Wait until all is acked; return the number of records that are not."""

    @abstractmethod
    def waiting(self) -> int:
        """Return the number of records handed over and not acked."""


def _check_size(topic: str, size_bytes: int) -> None:
    """Raise TooLarge above the limit, which is larger for dead letters: they hold whole records."""
    limit = LETTER_LIMIT_BYTES if topic.endswith("dead.letters") else VALUE_LIMIT_BYTES
    if size_bytes > limit:
        raise TooLarge(topic, size_bytes, limit)


def flush_all(publisher: Publisher, timeout_s: float, what: str, then: str) -> None:
    """Wait for every ack. Raises DeliveryFailed with the number missing, and advice (`then`)."""
    if missing := publisher.flush(timeout_s):
        msg = f"{missing:,} {what} were not acked within {timeout_s:g} s; {then}"
        raise DeliveryFailed(msg)
