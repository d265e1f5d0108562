"""A cache of images whose build failed lately, so that the same failure is reported at once.

The key is the image's name, which is derived from its sources: a changed Dockerfile has another.
"""

import time
from collections import OrderedDict
from collections.abc import Callable

from rollcall.schemas.errors import WorkFailed

KEPT = 64
AGAIN_S = 300.0
"""Seconds after which an image is built again: what was missing may exist by then."""


class FailedBuilds:
    """The last `KEPT` failed builds of one driver."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._failed: OrderedDict[str, tuple[float, str]] = OrderedDict()

    def add(self, name: str, why: str) -> WorkFailed:
        """Record a failed build; return the error for its caller."""
        self._failed[name] = self._clock(), why
        self._failed.move_to_end(name)
        while len(self._failed) > KEPT:
            self._failed.popitem(last=False)
        return WorkFailed("image", why, retriable=False)

    def check(self, name: str) -> None:
        """Raise the build's WorkFailed(`image`) again if it is too early to retry."""
        at, why = self._failed.get(name, (0.0, ""))
        if not why:
            return
        ago_s = self._clock() - at
        if ago_s >= AGAIN_S:
            del self._failed[name]
            return
        first, _, rest = why.partition("\n")
        first += f" ({ago_s:.0f} s ago; it is built again in {AGAIN_S - ago_s:.0f} s)"
        raise WorkFailed("image", f"{first}\n{rest}", retriable=False)
