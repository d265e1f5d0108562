"""Counts the rollouts that each user began in this clock hour, in the journals held here.

A worker that takes over a journal learns from its fold which open rollouts began in this hour.
Those that have ended since are on `trajectories`: they are read back if a quota needs them, and no
rollout under such a quota begins before that is done. A trajectory does not state when its rollout
began, so all that ended in this hour count: the count is never too low.
"""

from collections import Counter, deque
from collections.abc import Callable

import structlog

from rollcall.consumers.agents.lookback import Lookback, bounds_of
from rollcall.consumers.agents.watermark import Watermark
from rollcall.consumers.clock import Clock
from rollcall.consumers.log.protocols import Log, Record
from rollcall.schemas.codec import Codec
from rollcall.schemas.errors import Unavailable, WireError
from rollcall.schemas.messages import RolloutRequest, Trajectory

HOUR_MS = 3_600_000
FIELDS = "request", "status", "first_offset"
"""The fields of a trajectory that are read."""

log = structlog.get_logger()


class BegunThisHour:
    """Counts by partition and user; they start at zero with each hour."""

    def __init__(self, log_: Log, codec: Codec, topic: str, wall: Clock) -> None:
        self.hour_ms = 0
        """The start of this hour."""
        self._log = log_
        self._codec = codec
        self._topic = topic
        self._wall = wall
        self._counts: dict[int, Counter[str]] = {}
        self._taken: dict[int, tuple[int, Watermark]] = {}
        """By partition the time of the takeover, and the watermark from
        which its journal was folded."""
        self._back: dict[int, EndedThisHour] = {}
        self.turn()

    def turn(self) -> bool:
        """Update the hour; return True if a new one has begun."""
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
        """Begin to count for a journal that is folded from `begin`; the caller
        notes what the fold contains."""
        self.drop(partition)
        self._counts[partition] = Counter()
        self._taken[partition] = int(self._wall() * 1000), begin

    def drop(self, partition: int) -> None:
        self._counts.pop(partition, None)
        self._taken.pop(partition, None)
        if partition in self._back:
            self._back.pop(partition).close()

    def note(self, partition: int, user: str) -> None:
        """Count a rollout that begins now."""
        self._counts[partition][user] += 1

    def note_earlier(self, partition: int, user: str, at_ms: int) -> None:
        """Count a rollout that began at this time or before, if that may be in this hour."""
        if at_ms >= self.hour_ms:
            self.note(partition, user)

    def count(self, user: str) -> int:
        """Return the number of a user's rollouts that are known to have begun in this hour."""
        here = sum(counts[user] for counts in self._counts.values())
        return here + sum(back.counts[user] for back in self._back.values())

    def known(self) -> bool:
        """Return True if every partition's count is complete; otherwise start to read it back."""
        for number, (taken_ms, begin) in self._taken.items():
            # A journal held since before the hour has counted all of it.
            if taken_ms > self.hour_ms and number not in self._back:
                back = EndedThisHour(self._log, self._codec, (self._topic, number), begin)
                self._back[number] = back
        return all(back.known for back in self._back.values())

    def read(self, over: Callable[[], bool]) -> bool:
        """Read back until `over()`; return True if all counts have become complete."""
        unknown = [back for back in self._back.values() if not back.known]
        for back in unknown:
            while back.read(self.hour_ms) and not over():
                pass
        return bool(unknown) and self.known()


class EndedThisHour:
    """The rollouts that ended in this hour below the journal's
    watermark, which no fold contains."""

    def __init__(self, log_: Log, codec: Codec, place: tuple[str, int], begin: Watermark) -> None:
        self.known = begin.bulk_low == 0
        """True if all of them are read."""
        self.counts: Counter[str] = Counter()
        self._log = log_
        self._codec = codec
        self._place = place
        self._begin = begin
        self._seen: set[int] = set()
        self._back: Lookback | None = None
        self._held: deque[Record] = deque()

    def read(self, since_ms: int) -> bool:
        """Read further; False if nothing more is available now."""
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
        """Count the held records. Raises Unavailable if the registry cannot provide a schema."""
        while self._held:
            begun = begun_of(self._codec, self._held[0])
            self._held.popleft()
            if begun is not None:
                self._note(*begun)

    def _note(self, user: str, first: int) -> None:
        folded = first >= self._begin.bulk_low or first in self._begin.stragglers
        if not folded and first not in self._seen:
            self._seen.add(first)  # it may be written twice
            self.counts[user] += 1

    def close(self) -> None:
        if self._back is not None:
            self._back.close()


def begun_of(codec: Codec, record: Record) -> tuple[str, int] | None:
    """Return the user and first offset of an ended rollout; None if it was refused.

    Raises Unavailable.
    """
    try:
        request, status, first = codec.pick(record.value, Trajectory, *FIELDS)
    except WireError:
        return None
    began = isinstance(request, RolloutRequest) and status != "refused"
    return (request.user, first) if began else None
