"""The checkpoints to resume from, and the scored trajectories that each would read again.

A trainer resumes from its newest checkpoint, or from the next if that is damaged. In an older
checkpoint, records that later steps consumed are unread, and its replay pool still has samples
that were removed later.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rollcall.schemas.messages import Consumed
from rollcall.trainer.checkpoints.checkpoint import NEWEST, UNREADABLE, kept
from rollcall.trainer.checkpoints.manifest import marks_of, read_body, replay_of
from rollcall.trainer.rules.samples import ScoredPlace


@dataclass(frozen=True, slots=True)
class ResumePoint:
    """The positions of one checkpoint that determine what is read again."""

    consumed: Mapping[int, Consumed]
    """The consumed positions by partition."""
    replayed: frozenset[ScoredPlace]
    """Places of consumed records that may be replayed."""

    def first(self, partition: int, start: int) -> int:
        """Return the lowest offset of a partition to read again; the run began at `start`."""
        mark = self.consumed.get(partition)
        places = [offset for number, offset in self.replayed if number == partition]
        return min([mark.next_offset if mark else start, *places])

    def is_unread(self, partition: int, offset: int) -> bool:
        """Return True if the checkpoint has not consumed a record."""
        mark = self.consumed.get(partition)
        return mark is None or (offset >= mark.next_offset and offset not in mark.above)

    def wants(self, partition: int, offset: int) -> bool:
        """Return True if a record is read again."""
        return self.is_unread(partition, offset) or (partition, offset) in self.replayed


def resume_points(root: str | Path) -> tuple[ResumePoint, ...]:
    """Return those of the newest checkpoints, the newest first; skip damaged manifests."""
    points = []
    for path in list(reversed(kept(root).values()))[:NEWEST]:
        try:
            body = read_body(path)
            marks = {mark.partition: mark for mark in marks_of(body["consumed"])}
            places = replay_of(body.get("replay", {})).places()
        except UNREADABLE:
            continue
        points.append(ResumePoint(marks, frozenset(places)))
    return tuple(points)
