"""Asking a service that may be away: what it costs to learn that is paid once, not by all."""

import time
from collections.abc import Callable
from typing import TypeVar

from rollcall.schemas.errors import Unavailable

T = TypeVar("T")

AGAIN_S = 0.5
"""A service that was away is not asked again within this time."""
AGAIN_TIMES = 4
"""Nor within so many times what it cost to learn that: at most a fifth of the time goes there."""
AGAIN_MOST_S = 10.0


class CircuitBreaker:
    """Stands before one service; for one thread, or for several that may ask once too often."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self._away: tuple[float, type[Unavailable], str] | None = None
        """Until when the service is taken to be away, and what was said of it."""

    def ask(self, question: Callable[[], T]) -> T:
        """Ask; whoever asks for something else just after the service was away is told so.

        A worker with hundreds of records in hand would else wait for a timeout with each.
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
