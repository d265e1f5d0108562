"""Consumed positions of a topic, where records are consumed out of log order."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from rollcall.schemas.messages import Consumed


class Leader(NamedTuple):
    """The leader epoch of the last record below an offset, to detect a log that was truncated
    and has grown again."""

    topic: str
    partition: int
    offset: int
    epoch: int


@dataclass(frozen=True, slots=True)
class Asked:
    """Positions of the requests that the next trainer has to read, for its checkpoint."""

    marks: tuple[Consumed, ...]
    leaders: tuple[Leader, ...] = ()


def counted(mark: Consumed) -> int:
    """Return the offset after the last record that a mark counts as consumed."""
    return max(mark.next_offset, mark.above[-1] + 1 if mark.above else 0)


@dataclass(slots=True)
class _PartitionMarks:
    start: int
    """Offsets below this are skipped when delivered, unless they are outstanding."""
    outstanding: set[int] = field(default_factory=set)
    consumed: set[int] = field(default_factory=set)

    def mark(self) -> tuple[int, tuple[int, ...]]:
        """Return the next offset and the consumed offsets above it; forget those below."""
        next_offset = min(self.outstanding, default=self.start)
        self.consumed = {offset for offset in self.consumed if offset > next_offset}
        return next_offset, tuple(sorted(self.consumed))


class Consumption:
    """The consumed positions of a topic per partition, out of log order.

    Offsets have gaps (transaction markers, compaction), so only delivered ones are waited for:
    the next offset is the lowest that was delivered and not consumed, or, where there is none,
    the one after the last delivered.
    """

    def __init__(self, topic: str, restored: Iterable[Consumed] = (), topic_id: str = "") -> None:
        self.topic = topic
        self.topic_id = topic_id
        self._partitions = {
            mark.partition: _PartitionMarks(mark.next_offset, consumed=set(mark.above))
            for mark in restored
            if mark.topic == topic
        }

    def delivered(self, partition: int, offset: int) -> bool:
        """Record that a record was read; False if it is already consumed and must be skipped."""
        at = self._partitions.setdefault(partition, _PartitionMarks(offset))
        if offset < at.start and offset not in at.outstanding:
            return False
        at.start = max(at.start, offset + 1)
        if offset in at.consumed:
            return False
        at.outstanding.add(offset)
        return True

    def consumed(self, partition: int, offset: int) -> None:
        """Record that a delivered record was used or dropped."""
        at = self._partitions[partition]
        at.outstanding.remove(offset)
        at.consumed.add(offset)

    def marks(self) -> tuple[Consumed, ...]:
        """Return the positions for the checkpoint: seek to `next_offset`, skip those in `above`."""
        return tuple(
            Consumed(self.topic, partition, *at.mark(), self.topic_id)
            for partition, at in sorted(self._partitions.items())
        )
