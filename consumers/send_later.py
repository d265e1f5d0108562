"""What cannot be sent while registry or object store is away."""

from collections import deque
from collections.abc import Iterator
from typing import Generic, TypeVar

import structlog

from schemas.errors import Unavailable

T = TypeVar("T")

log = structlog.get_logger()


class SendLater(Generic[T]):
    """Things to be sent that wait to be tried again, in no order; any thread may put some in."""

    def __init__(self, warning: str) -> None:
        self._warning = warning
        """The event that is logged once, when the first of those that wait begins to."""
        self._waiting: deque[T] = deque()
        self._warned = False

    def add(self, item: T, error: Unavailable, **fields: object) -> None:
        """Have something wait; `error` says for what."""
        if not self._warned:
            self._warned = True
            log.warning(self._warning, error=str(error), **fields)
        self._waiting.append(item)

    def drain(self) -> Iterator[T]:
        """Each that waits now, to be tried again; what is put in meanwhile waits on."""
        for _ in range(len(self._waiting)):
            yield self._waiting.popleft()
        if not self._waiting:
            self._warned = False
