"""How far one assigned partition has come: what was delivered, handed over and finished."""

from collections import deque
from collections.abc import Callable, Set
from dataclasses import dataclass, field

from consumers.log.protocols import Record
from consumers.loop.suspects import ALONE, Suspicion, marked

NO_COMMIT = (-1, "")


@dataclass(slots=True)
class PartitionProgress:
    """One assigned partition: what was delivered and how much of it is finished."""

    topic: str
    number: int
    next_offset: int
    """The first offset that is not finished; what a commit says."""
    floor: int
    """What lies below was finished before the assignment: read for its history, never committed."""
    end_at_assign: int
    taken: deque[Record] = field(default_factory=deque)
    """Delivered and not passed yet, in order; below `thinned_to` only what is not finished."""
    thinned_to: int = 0
    """What lies below this offset, is not passed, and not in `taken`, is finished."""
    thinned: int = 0
    """How many records that is."""
    held: deque[Record] = field(default_factory=deque)
    """Delivered and not yet handed over: the turn was over, or the registry is away."""
    away: bool = False
    """Whether the first held record waits for the registry."""
    ended: int | None = None
    """Where the partition was said to end, while records before that are held."""
    end: int = 0
    """Where the partition last came to its end; behind the last record there may be holes."""
    skip: Set[int] = frozenset()
    """Offsets above the commit that were finished before a restart."""
    needs: Callable[[int, bytes | None], bool] | None = None
    """Told offset and key, whether a record below the floor is read at all."""
    stuck: int = -1
    """The offset that was last said to hold the partition."""
    committed: tuple[int, str] = NO_COMMIT
    paused: bool = False
    handed: int = -1
    """The last offset that was handed over, of those that a commit has to wait for."""
    suspicion: Suspicion = field(default_factory=Suspicion)
    topic_id: str = ""
    """The incarnation of the topic, which is said with every commit."""

    def receive(self, record: Record) -> bool:
        """Put a record behind those that wait to be handed over; False where it was finished."""
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
        """Move past everything finished, never past what is held; return how many records."""
        moved = 0
        while self.taken and self.taken[0].finished():
            self.next_offset = self.taken.popleft().offset + 1
            moved += 1
        if self.next_offset < self.thinned_to:
            first = self.taken[0].offset if self.taken else self.thinned_to
            self.next_offset = max(self.next_offset, min(first, self.thinned_to))
        if self.next_offset >= self.thinned_to:
            self.thinned = 0
        if not self.taken and not self.held and self.end > self.next_offset:
            self.next_offset = self.end
        self.suspicion.moved(self.next_offset, self.end_at_assign)
        return moved

    def thin(self) -> None:
        """Forget the records that are finished behind one that is not: their offsets are enough."""
        if self.taken:
            self.thinned_to = max(self.thinned_to, self.taken[-1].offset + 1)
            taken = len(self.taken)
            self.taken = deque(record for record in self.taken if not record.finished())
            self.thinned += taken - len(self.taken)

    def suspects_next(self) -> bool:
        """Whether the next record may only be handed over alone."""
        return self.suspicion.level == ALONE and self.held[0].offset >= self.floor

    def mark(self) -> str:
        """What a commit says of deaths and of its topic, behind the role's word."""
        deaths = self.suspicion.mark(self.next_offset, busy=self.handed >= self.next_offset)
        return marked(deaths, self.topic_id)
