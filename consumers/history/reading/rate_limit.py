"""The speed of readers: at a requested rate, or slow while other processes work."""

import time
from collections.abc import Callable

from rollcall.consumers.history.reading.history import LiveHistory
from rollcall.schemas.errors import Unavailable

RATE = 300.0
"""Default records a second while others work: at 20 kB each they take a tenth of a core. A run
that keeps two cores busy is slower by 5 % beside it (by 8 % at 500 a second)."""
RECENT_S = 10.0
LOT = 500
"""Records of one poll at full speed."""
LOTS_PER_S = 20
LOOK_EVERY_S = 1.0


class RateLimit:
    """Limits records per second; 0 is no limit."""

    def __init__(
        self,
        rate: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.rate = rate
        self._clock = clock
        self._sleep = sleep
        self._due = clock()

    def lot(self) -> int:
        """Return the size of a batch, small enough for an even rate."""
        return max(1, min(LOT, int(self.rate / LOTS_PER_S))) if self.rate else LOT

    def wait(self, count: int = 1) -> None:
        """Wait until that many may pass."""
        now = self._clock()
        if now < self._due:
            self._sleep(self._due - now)
        self._due = max(now, self._due) + (count / self.rate if self.rate else 0.0)


class YieldingRateLimit(RateLimit):
    """Limits the rate only while others are at work; checks again every second."""

    def __init__(
        self,
        rate: float,
        others_at_work: Callable[[], bool],
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        super().__init__(rate, clock, sleep)
        self._rate_beside = rate
        self._others_at_work = others_at_work
        self._look_due = clock()

    def wait(self, count: int = 1) -> None:
        now = self._clock()
        if now >= self._look_due:
            self._look_due = now + LOOK_EVERY_S
            self.rate = self._rate_beside if self._others_at_work() else 0.0
        super().wait(count)


def rate_limit_of(history: LiveHistory, rate: float | None) -> RateLimit:
    """Return the pace for a rate, 0 without limit; None limits it only while others are at work."""
    if rate is not None:
        return RateLimit(rate)
    return YieldingRateLimit(RATE, lambda: others_at_work(history))


def others_at_work(history: LiveHistory) -> bool:
    """Return True if records were written recently, or a group with members has lag.

    If the broker does not answer, it returns True.
    """
    try:
        return _written(history) or _behind(history)
    except Unavailable:
        return True


def _written(history: LiveHistory) -> bool:
    """Return True if the journal or a trainer has written; readers of history write neither."""
    log, topics = history.log, history.topics
    moving = [topics.events, topics.train_steps]
    since = log.offsets_for_times(moving, int((time.time() - RECENT_S) * 1000))
    ends = {(topic, n): end for topic in moving for n, (_, end) in log.bounds(topic).items()}
    return any(since[tp] < end for tp, end in ends.items())


def _behind(history: LiveHistory) -> bool:
    """Return True if a member of some group has not finished all of its partitions."""
    log, prefix = history.log, history.topics.prefix
    groups = [name for name in log.group_names() if name.startswith(prefix)]
    held = {(m.group, topic, n) for m in history.admin.members(groups) for topic, n in m.partitions}
    bounds = {topic: log.bounds(topic) for _, topic, _ in held}
    done = {(group, topic): log.committed(group, topic) for group, topic, _ in held}
    for group, topic, number in held:
        low, end = bounds[topic][number]
        if done[group, topic].get(number, low) < end:
            return True
    return False
