"""The progress of one assigned partition: records delivered, handed over and finished."""

from collections import deque
from collections.abc import Callable, Set
from dataclasses import dataclass, field

from rollcall.consumers.log.protocols import Record
from rollcall.consumers.loop.poison_detection import ALONE, Suspicion, metadata_suffix

NO_COMMIT = (-1, "")


@dataclass(slots=True)
class PartitionProgress:
    """One assigned partition: its delivered records, and how many of them are finished."""

    topic: str
    number: int
    next_offset: int
    """The first offset that is not finished; the committed position."""
    floor: int
    """Records below were finished before the assignment: they are read for
    history, never committed."""
    end_at_assign: int
    taken: deque[Record] = field(default_factory=deque)
    """Delivered records not passed yet, in order; below `thinned_to` only unfinished ones."""
    thinned_to: int = 0
    """Records below this offset that are not passed and not in `taken` are finished."""
    thinned: int = 0
    """The number of these finished records."""
    held: deque[Record] = field(default_factory=deque)
    """Records delivered and not yet handed over: the turn was over, or the
    registry is unavailable."""
    away: bool = False
    """True if the first held record waits for the registry."""
    ended: int | None = None
    """The reported end of the partition, while records before it are held."""
    end: int = 0
    """The last reported end of the partition; offsets after the last record may be holes."""
    skip: Set[int] = frozenset()
    """Offsets above the commit that were finished before a restart."""
    needs: Callable[[int, bytes | None], bool] | None = None
    """Decides by offset and key if a record below the floor is read at all."""
    stuck: int = -1
    """The last offset that was logged as holding the partition."""
    committed: tuple[int, str] = NO_COMMIT
    paused: bool = False
    handed: int = -1
    """The last offset that was handed over, of those that a commit has to wait for."""
    suspicion: Suspicion = field(default_factory=Suspicion)
    topic_id: str = ""
    """The incarnation of the topic, stated with every commit."""

    def receive(self, record: Record) -> bool:
        """Queue a record to be handed over; False if it was finished before."""
        if record.offset >= self.floor:
            self.taken.append(record)
        elif self.needs and not self.needs(record.offset, record.key):
            return True
        if record.offset in self.skip:
            record.closed = True
            return False
        self.held.append(record)
        return True

    def advance(self) -> int:
        """Move past all finished records, but not past held ones; return the number of records."""
        moved = 0
        while self.taken and self.taken[0].finished():
            self.next_offset = self.taken.popleft().offset + 1
            moved += 1
        # Thinned records are no longer in `taken`: step over those before the first unfinished one.
        if self.next_offset < self.thinned_to:
            first = self.taken[0].offset if self.taken else self.thinned_to
            self.next_offset = max(self.next_offset, min(first, self.thinned_to))
        if self.next_offset >= self.thinned_to:
            self.thinned = 0
        if not self.taken and not self.held and self.end > self.next_offset:
            self.next_offset = self.end
        self.suspicion.note_commit(self.next_offset, self.end_at_assign)
        return moved

    def thin(self) -> None:
        """Forget finished records behind an unfinished one: their offsets suffice."""
        if self.taken:
            self.thinned_to = max(self.thinned_to, self.taken[-1].offset + 1)
            taken = len(self.taken)
            self.taken = deque(record for record in self.taken if not record.finished())
            self.thinned += taken - len(self.taken)

    def next_is_isolated(self) -> bool:
        """Return True if the next record may only be handed over alone."""
        return self.suspicion.level == ALONE and self.held[0].offset >= self.floor

    def mark(self) -> str:
        """Return the mark of deaths and topic that follows the role's metadata in a commit."""
        deaths = self.suspicion.mark(self.next_offset, busy=self.handed >= self.next_offset)
        return metadata_suffix(deaths, self.topic_id)
