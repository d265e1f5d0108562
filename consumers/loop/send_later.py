"""Items that cannot be sent while registry or object store is unreachable."""

from collections import deque
from collections.abc import Iterator
from typing import Generic, TypeVar

import structlog

from rollcall.schemas.errors import Unavailable

T = TypeVar("T")

log = structlog.get_logger()


class SendLater(Generic[T]):
    """Items that wait to be sent again, in no order; any thread may add some."""

    def __init__(self, warning: str) -> None:
        self._warning = warning
        """The event that is logged once, when the first item begins to wait."""
        self._waiting: deque[T] = deque()
        self._warned = False

    def add(self, item: T, error: Unavailable, **fields: object) -> None:
        """Add an item; `error` is the reason of the wait."""
        if not self._warned:
            self._warned = True
            log.warning(self._warning, error=str(error), **fields)
        self._waiting.append(item)

    def drain(self) -> Iterator[T]:
        """Yield each item that waits now, to be sent again; items added meanwhile stay."""
        for _ in range(len(self._waiting)):
            yield self._waiting.popleft()
        if not self._waiting:
            self._warned = False
