"""A circuit breaker: only one request waits for the timeout of a service that is away."""

import time
from collections.abc import Callable
from typing import TypeVar

from rollcall.schemas.errors import Unavailable

T = TypeVar("T")

AGAIN_S = 0.5
"""The shortest pause before a service that was away is asked again."""
AGAIN_TIMES = 4
"""The pause is also this many times the failed request's duration, so that at most a fifth of the
time is spent on requests that fail."""
AGAIN_MOST_S = 10.0


class CircuitBreaker:
    """A circuit breaker for one service. Threads may share it; some may then ask once too often."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self._away: tuple[float, type[Unavailable], str] | None = None
        """The end of the pause, and the error that requests raise until then."""

    def ask(self, question: Callable[[], T]) -> T:
        """Ask the service; during a pause, raise its last error at once.

        Otherwise a worker with hundreds of records would wait for a timeout with each.
        """
        began = self.clock()
        if self._away is not None and began < self._away[0]:
            raise self._away[1](self._away[2])
        try:
            answer = question()
        except Unavailable as error:
            now = self.clock()
            pause_s = min(max(AGAIN_S, AGAIN_TIMES * (now - began)), AGAIN_MOST_S)
            self._away = now + pause_s, type(error), str(error)
            raise
        self._away = None
        return answer
