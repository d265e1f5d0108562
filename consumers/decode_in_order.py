"""Decoding records one after the other, for whoever reads a topic without a loop."""

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Generic, TypeVar

import structlog

from consumers.log.protocols import Record
from schemas.codec import Codec
from schemas.errors import Unavailable, WireError

M = TypeVar("M")

log = structlog.get_logger()


def decoded(codec: Codec, record: Record, expected: type[M]) -> M | None:
    """What a record says; None where it says nothing, for whoever can read it to read it there."""
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
    """Records that wait to be decoded; one that waits for the registry holds up all behind it."""

    def __init__(self, codec: Codec, expected: type[M]) -> None:
        self.codec = codec
        self.expected = expected
        self._held: deque[Record] = deque()
        self._warned = False

    def __len__(self) -> int:
        return len(self._held)

    def add(self, records: Iterable[Record]) -> None:
        self._held += records

    def ready(self) -> Iterator[tuple[Record, M | WireError]]:
        """What can be had now: messages, and in their places why there is none in a record."""
        while self._held:
            record = self._held[0]
            message: M | WireError
            try:
                message = self.codec.decode(record.value, self.expected)
            except WireError as error:
                message = error
            except Unavailable as error:
                if not self._warned:
                    self._warned = True
                    log.warning("registry_away", topic=record.topic, error=str(error))
                return
            self._warned = False
            self._held.popleft()
            yield record, message
