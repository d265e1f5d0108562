"""The way out into the log, whatever the log is: a Kafka producer, or the one in memory."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from schemas.errors import DeliveryFailed, TooLarge, WorkFailed
from schemas.headers import Headers

VALUE_LIMIT_BYTES = 1_000_000
"""Below every topic's max.message.bytes, with room for key, headers and batch."""
LETTER_LIMIT_BYTES = 2_000_000


class Cause(Protocol):
    """Whatever waits for acks: a record in hand."""

    sent: int
    acked: int


@dataclass(slots=True)
class Outgoing:
    """One record on its way, and whom to tell what became of it."""

    topic: str
    key: str | bytes | None
    value: bytes | None
    partition: int | None = None
    headers: Headers | None = None
    cause: Cause | None = None
    refused: Callable[[WorkFailed], None] | None = None
    alone: bool = False
    """Whether it is tried once more, by itself."""


class Publisher(ABC):
    """The way out. Acks are counted when `poll` runs, on the caller's thread."""

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

        `refused` is called by `poll` or `flush` where the topic will not have it: it is gone, or
        its limit is lower by now. What that sends instead stands for the record. Without it
        `poll` raises DeliveryFailed.
        """
        if value is not None and len(value) > VALUE_LIMIT_BYTES:
            _check_size(topic, len(value))
        if cause is not None:
            cause.sent += 1
        self._put(Outgoing(topic, key, value, partition, headers, cause, refused))

    @abstractmethod
    def _put(self, outgoing: Outgoing) -> None:
        """Let a record go, or gather it."""

    @abstractmethod
    def push(self) -> None:
        """Let what was sent leave now; `poll` and `flush` do so too. Any thread may call it."""

    @abstractmethod
    def poll(self) -> None:
        """Count acks; raises DeliveryFailed when a record was given up."""

    @abstractmethod
    def flush(self, timeout_s: float) -> int:
        """Wait until all is acked; return how many are not."""

    @abstractmethod
    def waiting(self) -> int:
        """Records handed over and not acked."""


def _check_size(topic: str, size_bytes: int) -> None:
    """Letters hold records whole, so they may be larger than any; raises TooLarge."""
    limit = LETTER_LIMIT_BYTES if topic.endswith("dead.letters") else VALUE_LIMIT_BYTES
    if size_bytes > limit:
        raise TooLarge(topic, size_bytes, limit)


def flush_all(publisher: Publisher, timeout_s: float, what: str, then: str) -> None:
    """Wait for every ack; raises DeliveryFailed with how many are missing, and what to do then."""
    if missing := publisher.flush(timeout_s):
        msg = f"{missing:,} {what} were not acked within {timeout_s:g} s; {then}"
        raise DeliveryFailed(msg)
