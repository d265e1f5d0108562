"""What time it is, for waits that began at a record's append time.

Order never depends on it: a wrong clock ends a wait early or late, and what it did is an event.
"""

import time
from collections.abc import Callable
from functools import partial

Clock = Callable[[], float]

TICKING = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)

SLEW = 0.25
"""Seconds a second by which a clock follows a log that is ahead: whatever its broker's clock does,
a wait lasts four fifths of what it may."""


ticking: Clock = partial(time.clock_gettime, TICKING)
"""Seconds that nobody can set; where the system tells, also while it was suspended."""


def steady_wall(wall: Clock = time.time, monotonic: Clock = ticking) -> Clock:
    """Seconds since the epoch, counted on from now: setting the clock makes no jump."""
    since = wall() - monotonic()
    return lambda: since + monotonic()


class LogClock:
    """The time by one partition: a wall clock, set by the append times of what was just read.

    A wait is measured from an append time, so it must end by the clock that stamped it, the
    broker's. What was just read is at least as old as its stamp says, so where the wall clock is
    ahead of the stamp, the stamp counts at once: a host whose clock is fast ends nothing early,
    and neither does one that reads late. Where the stamp is ahead, it may be a single broker's
    error, or a leader with another clock: the time is drawn after it by `slew` seconds a second
    and falls back as it does, so no stamp can end at once the waits that began before it.
    """

    def __init__(self, wall: Clock, slew: float = SLEW) -> None:
        self._wall = wall
        self._slew = slew
        self._at = wall()
        self._ahead_s = 0.0
        """How far the time may be ahead of the wall clock."""
        self._stamp_s = 0.0
        """How far the last stamp was ahead of it when it was read."""

    def __call__(self) -> float:
        now = self._wall()
        reach = max(0.0, now - self._at) * self._slew
        self._at = now
        wanted = max(0.0, self._stamp_s) - self._ahead_s
        self._ahead_s += max(-reach, min(wanted, reach))
        return now + min(self._ahead_s, self._stamp_s)

    def saw(self, append_ms: int) -> None:
        """A record with this append time was read, just after it was written."""
        self()
        self._stamp_s = append_ms / 1000 - self._at
