"""Clocks for waits that began at a record's append time.

Order never depends on them: a wrong clock ends a wait early or late, and the result is an event.
"""

import time
from collections.abc import Callable
from functools import partial

Clock = Callable[[], float]

TICKING = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)

SLEW = 0.25
"""Seconds per second by which a clock follows a log that is ahead: whatever the broker's clock
does, a wait lasts at least four fifths of its time."""


ticking: Clock = partial(time.clock_gettime, TICKING)
"""Seconds of a clock that cannot be set, including time in suspension where supported."""


def steady_wall(wall: Clock = time.time, monotonic: Clock = ticking) -> Clock:
    """Return a clock of seconds since the epoch that does not jump when the time is set."""
    since = wall() - monotonic()
    return lambda: since + monotonic()


class LogClock:
    """The time of one partition: a wall clock, corrected by append times of records just read.

    A wait begins at an append time, so it must end by the same clock, the broker's. A record
    that was just read is at least as old as its stamp says, so a wall clock ahead of the stamp is
    set back at once: neither a fast host nor a late reader ends a wait early. A stamp ahead of the
    wall clock may be the error of a single broker, or a new leader with another clock: the time
    follows it by `slew` seconds per second, and falls back with it, so no stamp can at once end the
    waits that began before it.
    """

    def __init__(self, wall: Clock, slew: float = SLEW) -> None:
        self._wall = wall
        self._slew = slew
        self._at = wall()
        self._ahead_s = 0.0
        """Seconds by which the time may be ahead of the wall clock."""
        self._stamp_s = 0.0
        """Seconds by which the last stamp was ahead of the wall clock when it was read."""

    def __call__(self) -> float:
        now = self._wall()
        reach = max(0.0, now - self._at) * self._slew
        self._at = now
        wanted = max(0.0, self._stamp_s) - self._ahead_s
        self._ahead_s += max(-reach, min(wanted, reach))
        return now + min(self._ahead_s, self._stamp_s)

    def saw(self, append_ms: int) -> None:
        """Note the append time of a record that was read just after it was written."""
        self()
        self._stamp_s = append_ms / 1000 - self._at
