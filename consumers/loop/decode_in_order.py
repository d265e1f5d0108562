"""Decoding of records in order, for readers of a topic without a loop."""

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Generic, TypeVar

import structlog

from rollcall.consumers.log.protocols import Record
from rollcall.consumers.loop.dead_letters import (
    SkippedRecords,
    log_held_partition,
    log_unavailable,
    place_of,
)
from rollcall.schemas.codec import Codec
from rollcall.schemas.errors import Skipped, Unavailable, UnknownSchema, WireError

RETRY_S = 1.0
"""Time after which a record with an unknown schema is tried again."""
PATIENCE_S = 60.0
"""Limit of all waits of a reader for such schemas, since bytes from anywhere may name none."""
M = TypeVar("M")

log = structlog.get_logger()


def decoded(codec: Codec, record: Record, expected: type[M]) -> M | None:
    """Decode a record; log it and return None if it is unreadable."""
    try:
        return codec.decode(record.value, expected)
    except WireError as error:
        log.warning(
            "record_unreadable",
            topic=record.topic,
            partition=record.partition,
            offset=record.offset,
            error=type(error).__name__,
        )
        return None


class DecodeInOrder(Generic[M]):
    """A queue of records to decode; one that waits for the registry delays all behind it.

    With `skipped`, a record with a missing schema, or one of another type, waits too: after a
    registry assigned its ids anew, good records look like that, and all readers of a topic must
    agree. It waits until the schema is back, an operator has it skipped, or the reader's time for
    this is used up: one record must not stop all readers forever.
    """

    def __init__(
        self,
        codec: Codec,
        expected: type[M],
        *,
        skipped: SkippedRecords | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.codec = codec
        self.expected = expected
        self.skipped = skipped
        self.clock = clock
        self._held: deque[Record] = deque()
        self._warned = False
        self._stuck: tuple[str, int, int] | None = None
        self._due = 0.0
        self._patient_until: float | None = None

    def __len__(self) -> int:
        return len(self._held)

    def add(self, records: Iterable[Record]) -> None:
        self._held += records

    def ready(self) -> Iterator[tuple[Record, M | WireError]]:
        """Yield what can be decoded now: each record with its message, or with its error."""
        while self._held:
            record = self._held[0]
            if self._stuck == place_of(record) and self.clock() < self._due:
                return
            message: M | WireError
            try:
                message = self._read(record)
            except Unavailable as error:
                if not self._warned:
                    self._warned = True
                    log_unavailable(record.topic, error)
                return
            except UnknownSchema as error:
                self._wait(record, error)
                return
            self._warned = False
            self._held.popleft()
            yield record, message

    def _read(self, record: Record) -> M | WireError:
        """Decode a record. Raises Unavailable, and UnknownSchema if it has to wait."""
        try:
            return self.codec.decode(record.value, self.expected)
        except UnknownSchema as error:
            if self.skipped is None or record.value is None or self._has_waited():
                return error
            self.skipped.refresh()
            if place_of(record) in self.skipped.places:
                return error
            try:
                self.skipped.check(record)
            except Skipped as skipped:
                return skipped
            raise
        except WireError as error:
            return error

    def _has_waited(self) -> bool:
        return self._patient_until is not None and self.clock() >= self._patient_until

    def _wait(self, record: Record, error: UnknownSchema) -> None:
        self._due = self.clock() + RETRY_S
        if self._patient_until is None:
            self._patient_until = self.clock() + PATIENCE_S
        if self._stuck == place_of(record) or self.skipped is None:
            return
        self._stuck = place_of(record)
        group, place = self.skipped.group, f"{record.partition}@{record.offset}"
        log_held_partition(
            record,
            error,
            f"bring the schema back, upgrade this worker, or `rollcall dlq skip {group} "
            f"{record.topic} {place}`; it is buried after {PATIENCE_S:g} s",
        )
