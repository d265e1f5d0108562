"""No faster than asked for."""

import time
from collections.abc import Callable


class Pace:
    """Lets so many through a second; 0 is no limit."""

    def __init__(
        self,
        rate: float,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._every_s = 1 / rate if rate else 0.0
        self._clock = clock
        self._sleep = sleep
        self._due = clock()

    def wait(self, count: int = 1) -> None:
        """Until that many may pass."""
        now = self._clock()
        if now < self._due:
            self._sleep(self._due - now)
        self._due = max(now, self._due) + count * self._every_s
