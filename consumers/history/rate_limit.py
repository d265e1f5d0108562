"""How fast a reader goes: at a rate that was asked for, or giving way to whoever works."""

import time
from collections.abc import Callable

LOT = 500
"""Records of one poll at full speed."""
LOTS_PER_S = 20
LOOK_EVERY_S = 1.0


class Pace:
    """Lets so many through a second; 0 is no limit."""

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
        """How many to take at once, so that the way is even."""
        return max(1, min(LOT, int(self.rate / LOTS_PER_S))) if self.rate else LOT

    def wait(self, count: int = 1) -> None:
        """Until that many may pass."""
        now = self._clock()
        if now < self._due:
            self._sleep(self._due - now)
        self._due = max(now, self._due) + (count / self.rate if self.rate else 0.0)


class GivingWay(Pace):
    """Keeps to a rate while others are at work, and else to none; asks anew every second."""

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
