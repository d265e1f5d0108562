"""Images whose build failed lately: nobody waits for the same failure twice.

By name, which says what an image is made of: whoever changes a Dockerfile asks for another one.
"""

import time
from collections import OrderedDict
from collections.abc import Callable

from schemas.errors import WorkFailed

KEPT = 64
AGAIN_S = 300.0
"""After so long one is built again: what it was made from may be there by then."""


class FailedBuilds:
    """Those of one driver, the youngest `KEPT`."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._failed: OrderedDict[str, tuple[float, str]] = OrderedDict()

    def add(self, name: str, why: str) -> WorkFailed:
        """Remember one; what whoever asked for it is told."""
        self._failed[name] = self._clock(), why
        self._failed.move_to_end(name)
        while len(self._failed) > KEPT:
            self._failed.popitem(last=False)
        return WorkFailed("image", why, retriable=False)

    def check(self, name: str) -> None:
        """Raises WorkFailed(`image`), as the build did, for one that is not to be tried yet."""
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
