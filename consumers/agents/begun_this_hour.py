"""How many rollouts of each user began in this hour of the clock, in the journals held here.

Whoever takes a journal over knows from its fold which open rollouts began in this hour. Those that
have ended since are on `trajectories`: they are read back where somebody's quota asks for it, and
until that is done nobody who has such a quota begins. When one of them began is told by no
trajectory, so all that ended in this hour count: never too few.
"""

from collections import Counter, deque
from collections.abc import Callable

import structlog

from consumers.agents.lookback import Lookback, bounds_of
from consumers.agents.watermark import Watermark
from consumers.clock import Clock
from consumers.log.protocols import Log, Record
from schemas.codec import Codec
from schemas.errors import Unavailable, WireError
from schemas.messages import RolloutRequest, Trajectory

HOUR_MS = 3_600_000
FIELDS = "request", "status", "first_offset"
"""Of a trajectory all that is looked at."""

log = structlog.get_logger()


class BegunThisHour:
    """Counts by partition and user; a new hour begins with none."""

    def __init__(self, log_: Log, codec: Codec, topic: str, wall: Clock) -> None:
        self.hour_ms = 0
        """When this hour began."""
        self._log = log_
        self._codec = codec
        self._topic = topic
        self._wall = wall
        self._counts: dict[int, Counter[str]] = {}
        self._taken: dict[int, tuple[int, Watermark]] = {}
        """When each partition was taken over, and from where on its journal was folded."""
        self._back: dict[int, EndedThisHour] = {}
        self.turn()

    def turn(self) -> bool:
        """Look at the clock; whether a new hour has begun."""
        hour_ms = int(self._wall() * 1000) // HOUR_MS * HOUR_MS
        if hour_ms == self.hour_ms:
            return False
        self.hour_ms = hour_ms
        for counts in self._counts.values():
            counts.clear()
        for number in list(self._back):
            self._back.pop(number).close()
        return True

    def take_over(self, partition: int, begin: Watermark) -> None:
        """A journal is folded from here on; what it tells of is noted by whoever folds it."""
        self.drop(partition)
        self._counts[partition] = Counter()
        self._taken[partition] = int(self._wall() * 1000), begin

    def drop(self, partition: int) -> None:
        self._counts.pop(partition, None)
        self._taken.pop(partition, None)
        if partition in self._back:
            self._back.pop(partition).close()

    def note(self, partition: int, user: str) -> None:
        """A rollout has begun."""
        self._counts[partition][user] += 1

    def note_earlier(self, partition: int, user: str, at_ms: int) -> None:
        """A rollout began at this time, or before."""
        if at_ms >= self.hour_ms:
            self.note(partition, user)

    def count(self, user: str) -> int:
        """How many of a user's began, as far as is known."""
        here = sum(counts[user] for counts in self._counts.values())
        return here + sum(back.counts[user] for back in self._back.values())

    def known(self) -> bool:
        """Whether it is known of every partition; if not, it will be read back."""
        for number, (taken_ms, begin) in self._taken.items():
            if taken_ms > self.hour_ms and number not in self._back:
                back = EndedThisHour(self._log, self._codec, (self._topic, number), begin)
                self._back[number] = back
        return all(back.known for back in self._back.values())

    def read(self, over: Callable[[], bool]) -> bool:
        """Read back until the time is over; whether all has become known by that."""
        unknown = [back for back in self._back.values() if not back.known]
        for back in unknown:
            while back.read(self.hour_ms) and not over():
                pass
        return bool(unknown) and self.known()


class EndedThisHour:
    """What ended in this hour, and so early that no fold of the journal tells of it."""

    def __init__(self, log_: Log, codec: Codec, place: tuple[str, int], begin: Watermark) -> None:
        self.known = begin.bulk_low == 0
        """Whether all of it is read."""
        self.counts: Counter[str] = Counter()
        self._log = log_
        self._codec = codec
        self._place = place
        self._begin = begin
        self._seen: set[int] = set()
        self._back: Lookback | None = None
        self._held: deque[Record] = deque()

    def read(self, since_ms: int) -> bool:
        """Read on; False where there is nothing more for now."""
        try:
            if self._back is None:
                topic, number = self._place
                start = self._log.offsets_for_times([topic], since_ms)[self._place]
                end = bounds_of(self._log, topic, number)[number][1]
                self._back = Lookback(self._log, topic, number, start, end)
            self._held += self._back.read()
            moved = bool(self._held)
            self._count()
        except Unavailable as error:
            log.warning("log_away", topic=self._place[0], error=str(error))
            return False
        self.known = self._back.done
        return moved and not self.known

    def _count(self) -> None:
        """Raises Unavailable where the registry does not tell how a record is to be read."""
        while self._held:
            begun = begun_of(self._codec, self._held[0])
            self._held.popleft()
            if begun is not None:
                self._note(*begun)

    def _note(self, user: str, first: int) -> None:
        folded = first >= self._begin.bulk_low or first in self._begin.stragglers
        if not folded and first not in self._seen:
            self._seen.add(first)  # one may be written twice
            self.counts[user] += 1

    def close(self) -> None:
        if self._back is not None:
            self._back.close()


def begun_of(codec: Codec, record: Record) -> tuple[str, int] | None:
    """The user of an ended rollout and its first offset, unless it never began.

    Raises Unavailable.
    """
    try:
        request, status, first = codec.pick(record.value, Trajectory, *FIELDS)
    except WireError:
        return None
    began = isinstance(request, RolloutRequest) and status != "refused"
    return (request.user, first) if began else None
