"""Where training may go on from, and which scored trajectories it would read again there.

A trainer goes on from its newest checkpoint, or from the next where that one is damaged. What steps
since have consumed is unread there, and what the replay pool has let go since is still in it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from schemas.messages import Consumed
from trainer.checkpoint import NEWEST, UNREADABLE, kept
from trainer.manifest import marks_of, read_body, replay_of
from trainer.samples import ScoredPlace


@dataclass(frozen=True, slots=True)
class ResumePoint:
    """One checkpoint, as far as it says what is read again."""

    consumed: Mapping[int, Consumed]
    """By partition."""
    replayed: frozenset[ScoredPlace]
    """What was consumed and may be trained on again."""

    def first(self, partition: int, start: int) -> int:
        """The lowest offset of a partition that is read again; the run began at `start`."""
        mark = self.consumed.get(partition)
        places = [offset for number, offset in self.replayed if number == partition]
        return min([mark.next_offset if mark else start, *places])

    def is_unread(self, partition: int, offset: int) -> bool:
        """Whether no step before it has consumed a record."""
        mark = self.consumed.get(partition)
        return mark is None or (offset >= mark.next_offset and offset not in mark.above)

    def wants(self, partition: int, offset: int) -> bool:
        """Whether a record is read again."""
        return self.is_unread(partition, offset) or (partition, offset) in self.replayed


def resume_points(root: str | Path) -> tuple[ResumePoint, ...]:
    """Those of the newest checkpoints, the newest first; damaged manifests are passed over."""
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
