"""Rate limits on the model calls of users (calls above the rate are delayed, never dropped), and
the share of a user's quota that one worker may use.

Each user has a token bucket that fills with this worker's share of the rate and holds one second's
worth of calls. Calls of one user leave in the order in which they were made. A waiting call has no
deadline; its clock starts when it is sent. Waiting calls are not recorded, so the next owner of the
journal cannot know which were sent: it sends all outstanding calls again and paces them anew.

A worker's share of a limit is that of the journals it holds: the limit is divided among the
partitions so that all parts sum to it, and a worker pools the parts of its own. A worker that holds
any partition may run at least one rollout, since those waiting there would otherwise never begin:
all workers together thus keep a limit that is no smaller than their number. A partition that moves
takes its part along at once; rollouts that run elsewhere under that part go on.
"""

from collections import Counter, OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rollcall.consumers.agents.fold.outstanding import OutstandingEffect
from rollcall.consumers.agents.fold.rollout import Output, Rollout
from rollcall.consumers.loop.clock import Clock
from rollcall.consumers.loop.quota_table import QuotaTable
from rollcall.schemas.messages import ModelCall


class QuotaShare:
    """The partitions that count towards this worker's shares."""

    def __init__(self) -> None:
        self.held: set[int] = set()
        """Partitions whose journals are folded: before that their running rollouts are unknown."""
        self.partitions = 1
        """The number of partitions in all."""

    def part_of(self, limit: int) -> int:
        """Return this worker's share of a whole number; at least one."""
        count = max([self.partitions, *(number + 1 for number in self.held)])
        # Rounded so that the parts of all partitions sum to the limit.
        parts = ((n + 1) * limit // count - n * limit // count for n in self.held)
        return max(1, sum(parts))

    def rate_of(self, limit: float) -> float:
        """Return this worker's share of a rate."""
        return limit * len(self.held) / max(self.partitions, len(self.held))


NEVER_MS = 10**14
"""A time from which no deadline is reached, within the range of every clock."""

ROUNDING = 1e-9
MOST_BUCKETS = 1024
"""The number of buckets above which the full ones are dropped."""

Place = tuple[Rollout, int, int, int]
"""Rollout, attempt, position and try of a call."""


@dataclass(slots=True)
class Bucket:
    """A token bucket: its level, and the time at which it had that level."""

    level: float
    at: float

    def take_token(self, rate: float, now: float) -> bool:
        """Take one token if there is one; `rate` in calls a second."""
        # The bucket holds at least one call, however low the rate is.
        self.level = min(max(1.0, rate), self.level + max(0.0, now - self.at) * rate)
        self.at = now
        if self.level < 1 - ROUNDING:
            return False
        self.level -= 1
        return True


class CallPacing:
    """The queues of calls that are delayed by a rate."""

    def __init__(self, table: QuotaTable, shares: QuotaShare, clock: Clock) -> None:
        self.held: Counter[int] = Counter()
        """The number of rollouts with a waiting call, by partition."""
        self._table = table
        self._shares = shares
        self._clock = clock
        self._buckets: dict[str, Bucket] = {}
        self._most_buckets = MOST_BUCKETS
        self._queues: dict[str, OrderedDict[Place, OutstandingEffect]] = {}
        """Waiting calls by user."""
        self._places: dict[Rollout, list[Place]] = {}

    def now(self, outputs: Sequence[Output], rollout: Rollout | None) -> Sequence[Output]:
        """Return the effects that may be sent at once; the other calls are queued."""
        if rollout is None or not (self._queues or self._table.paces):
            return outputs
        return [e for e in outputs if not (isinstance(e, ModelCall) and self._waits(e, rollout))]

    def _waits(self, call: ModelCall, rollout: Rollout) -> bool:
        """Queue a call if it has to wait, and stop its clock; return True if it waits."""
        user = rollout.request.user
        if call.kind != "sample" or (user not in self._queues and self._may_go(user)):
            return False
        place = rollout, call.attempt, call.position, call.tries
        waits = rollout.attempt.outstanding[call.position]
        waits.opened_ms = NEVER_MS
        queue = self._queues.setdefault(user, OrderedDict())
        if place not in queue:
            queue[place] = waits
            if rollout not in self._places:
                self._places[rollout] = []
                self.held[rollout.partition] += 1
            self._places[rollout].append(place)
        return True

    def _may_go(self, user: str) -> bool:
        """Return True if the user may send one more call, and count it as sent."""
        limit = self._table.of(user).calls_per_s
        if not limit:
            self._buckets.pop(user, None)
            return True
        if len(self._buckets) >= self._most_buckets:
            self._forget_idle()
        rate, now = self._shares.rate_of(limit), self._clock()
        bucket = self._buckets.setdefault(user, Bucket(max(1.0, rate), now))
        return bucket.take_token(rate, now)

    def due(self) -> Iterator[tuple[Rollout, OutstandingEffect]]:
        """Yield the calls that may be sent now; the caller must send them."""
        for user in list(self._queues):
            queue = self._queues.get(user, OrderedDict())
            while queue:
                place, waits = next(iter(queue.items()))
                stale = not _is_waited_for(place, waits)
                if not stale and not self._may_go(user):
                    break
                self._forget(place)
                if not stale:
                    yield place[0], waits

    def leave(self, rollout: Rollout) -> None:
        """Drop the queued calls of a rollout that has ended or belongs to another worker now."""
        for place in list(self._places.get(rollout, ())):
            self._forget(place)

    def _forget(self, place: Place) -> None:
        rollout = place[0]
        user = rollout.request.user
        del self._queues[user][place]
        if not self._queues[user]:
            del self._queues[user]
        self._places[rollout].remove(place)
        if not self._places[rollout]:
            del self._places[rollout]
            self.held[rollout.partition] -= 1

    def _forget_idle(self) -> None:
        """Drop the buckets that are full again: a new bucket is full, too."""
        for user, bucket in list(self._buckets.items()):
            rate = self._shares.rate_of(self._table.of(user).calls_per_s)
            if bucket.level + (self._clock() - bucket.at) * rate >= max(1.0, rate):
                del self._buckets[user]
        # So that the next pass is not for every call, if many users are busy.
        self._most_buckets = max(MOST_BUCKETS, 2 * len(self._buckets))


def _is_waited_for(place: Place, waits: OutstandingEffect) -> bool:
    """Return True if a call is still outstanding at the same try."""
    rollout, _, position, tries = place
    return rollout.attempt.outstanding.get(position) is waits and waits.tries == tries
