"""What time it is, for waits that began at a record's append time.

Order never depends on it: a wrong clock ends a wait early or late, and what it did is an event.
"""

import time
from collections.abc import Callable

Clock = Callable[[], float]


def steady_wall(wall: Clock = time.time, monotonic: Clock = time.monotonic) -> Clock:
    """Seconds since the epoch, counted on from now: setting the clock makes no jump."""
    since = wall() - monotonic()
    return lambda: since + monotonic()


class LogClock:
    """A wall clock that is never behind the log: where the broker's is ahead, its time counts.

    A wait that is measured from an append time then never takes longer than it may.
    """

    def __init__(self, wall: Clock) -> None:
        self._wall = wall
        self._behind_s = 0.0

    def __call__(self) -> float:
        return self._wall() + self._behind_s

    def saw(self, append_ms: int) -> None:
        """A record with this append time was read."""
        self._behind_s = max(self._behind_s, append_ms / 1000 - self._wall())
