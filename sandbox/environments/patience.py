"""How long a step waits for more to be asked while some requests wait for the model.

In proportion to what replies take here, for else each caller of a process would go round alone, and
a process with several would get the speed of one. Where that was too short for somebody it is
longer the next time, up to half of what a reply takes.
"""

import statistics
from collections import deque
from collections.abc import Callable

HOLD = 0.1
"""Of the time that a reply takes, for others to ask too."""
HOLD_S = (0.005, 1.0)
"""At least and at most."""
REPLY_TIMES = 31


class Patience:
    """Of one process; in seconds of the clock that it is given."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._shown_at: dict[str, float] = {}
        """When each ask was shown, by its digest."""
        self._took: deque[float] = deque(maxlen=REPLY_TIMES)
        self._patience_s = 0.0
        self._ended = False

    def shown(self, digest: str) -> None:
        """An ask goes to the model now."""
        self._shown_at[digest] = self._now()

    def told(self, digest: str) -> None:
        """Its reply has come."""
        shown_at = self._shown_at.pop(digest, None)
        if shown_at is not None:
            self._took.append(self._now() - shown_at)

    def until(self) -> float:
        """When a step that begins now has waited long enough."""
        least, most = HOLD_S
        reply_s = statistics.median(self._took) if self._took else 0.0
        self._patience_s = min(max(self._patience_s, HOLD * reply_s, least), reply_s / 2 or least)
        self._ended = False
        return self._now() + min(most, max(self._patience_s, least))

    def end(self) -> None:
        """It came to its end before as many had asked as were told."""
        self._ended = True

    def learn(self, *, late: bool) -> None:
        """Whether somebody asked after the last end, if it came to one: then it was too short."""
        if self._ended:
            self._patience_s *= 2 if late else 0.5
