"""Reading `control`: every process reads all of it; there is no group, and nothing is committed."""

import time
from collections.abc import Callable, Iterator

from rollcall.consumers.log.protocols import Log, Record
from rollcall.consumers.loop.dead_letters import SkippedRecords
from rollcall.consumers.loop.decode_in_order import DecodeInOrder
from rollcall.schemas.codec import Codec
from rollcall.schemas.errors import WireError
from rollcall.schemas.messages import Control
from rollcall.schemas.topics import Topics

RETIRED = Control("unknown")
"""The message of a record without a value or an unreadable one: it revokes earlier ones of its
key, since compaction keeps nothing before it."""
MOST_RECORDS = 100
"""Records of one poll: each may be as large as the topic allows, a megabyte."""
POLLS = 20
"""The most polls in a row, while each of them is full."""


class ControlReader:
    """The records on `control`, in order; one that waits for the registry delays later ones.

    With `skipped`, records of missing schemas or of other types wait as well.
    """

    def __init__(
        self,
        log_: Log,
        codec: Codec,
        topics: Topics,
        *,
        from_end: bool = False,
        unreadable: Callable[[Record, WireError], None] | None = None,
        skipped: SkippedRecords | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._reader = log_.reader([topics.control], from_end=from_end)
        self._held = DecodeInOrder(codec, Control, skipped=skipped, clock=clock)
        self._unreadable = unreadable
        """Called for unreadable records; without it they are skipped."""

    def poll(self, timeout_s: float = 0.0) -> Iterator[tuple[Record, Control]]:
        """Yield the records that have arrived."""
        for _ in range(POLLS):
            read = [] if self._held else self._reader.poll(timeout_s, MOST_RECORDS)
            self._held.add(read)
            yield from self._ready()
            if len(read) < MOST_RECORDS:
                return

    def _ready(self) -> Iterator[tuple[Record, Control]]:
        for record, order in self._held.ready():
            if isinstance(order, Control):
                yield record, order
                continue
            if self._unreadable is not None and record.value is not None:
                self._unreadable(record, order)
            yield record, RETIRED

    def caught_up(self) -> bool:
        return self._reader.caught_up() and not self._held

    def close(self) -> None:
        self._reader.close()
