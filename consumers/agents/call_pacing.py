"""Model calls of users who have a rate: sent later where there are too many, never dropped.

A bucket for each user fills with this worker's share of the rate, and holds what comes in a second.
Of one user calls leave in the order in which they were asked for. The deadline of a call that waits
stands still: its clock starts when it is sent. Nothing is written meanwhile, so an heir, who cannot
know what was not sent, asks again for all that is waited for and paces it anew.
"""

from collections import Counter, OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from consumers.agents.fold.outstanding import Outstanding
from consumers.agents.fold.rollout import Effect, Rollout
from consumers.agents.shares import Shares
from consumers.clock import Clock
from consumers.quota_table import QuotaTable
from schemas.messages import ModelCall

NEVER_MS = 10**14
"""No deadline that begins here passes, and every clock still fits it."""

ROUNDING = 1e-9

Place = tuple[Rollout, int, int, int]
"""Rollout, attempt, position and try of a call."""


@dataclass(slots=True)
class Bucket:
    """Calls that may be sent at once, and when that was so."""

    level: float
    at: float

    def take(self, rate: float, now: float) -> bool:
        """Take one call out, if there is one; `rate` in calls a second."""
        self.level = min(max(1.0, rate), self.level + max(0.0, now - self.at) * rate)
        self.at = now
        if self.level < 1 - ROUNDING:
            return False
        self.level -= 1
        return True


class CallPacing:
    """The calls that wait for their turn."""

    def __init__(self, table: QuotaTable, shares: Shares, clock: Clock) -> None:
        self.held: Counter[int] = Counter()
        """Rollouts of which a call waits, by partition."""
        self._table = table
        self._shares = shares
        self._clock = clock
        self._buckets: dict[str, Bucket] = {}
        self._queues: dict[str, OrderedDict[Place, Outstanding]] = {}
        """By user."""
        self._places: dict[Rollout, list[Place]] = {}

    def now(self, effects: Sequence[Effect], rollout: Rollout | None) -> Sequence[Effect]:
        """What of this may be sent at once; the other calls wait."""
        if rollout is None or not (self._queues or self._table.paces):
            return effects
        return [e for e in effects if not (isinstance(e, ModelCall) and self._waits(e, rollout))]

    def _waits(self, call: ModelCall, rollout: Rollout) -> bool:
        """Whether a call has to wait; where it does, its clock stands still."""
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
        """Whether one more call of a user may be sent, which counts as sent then."""
        limit = self._table.of(user).calls_per_s
        if not limit:
            self._buckets.pop(user, None)
            return True
        rate, now = self._shares.rate_of(limit), self._clock()
        bucket = self._buckets.setdefault(user, Bucket(max(1.0, rate), now))
        return bucket.take(rate, now)

    def due(self) -> Iterator[tuple[Rollout, Outstanding]]:
        """The calls whose turn has come; who takes one sends it."""
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
        """A rollout has ended, or belongs to another worker now: its calls are sent by nobody."""
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

    def forget_idle(self) -> None:
        """Let go of the buckets that are full: new ones are, too."""
        for user, bucket in list(self._buckets.items()):
            rate = self._shares.rate_of(self._table.of(user).calls_per_s)
            if bucket.level + (self._clock() - bucket.at) * rate >= max(1.0, rate):
                del self._buckets[user]


def _is_waited_for(place: Place, waits: Outstanding) -> bool:
    """Whether a call has not been answered, called off or asked for anew."""
    rollout, _, position, tries = place
    return rollout.attempt.outstanding.get(position) is waits and waits.tries == tries
