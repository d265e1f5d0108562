"""A learner's state as it is now, read where it lies, or copied before it changes.

Nothing is copied while somebody reads: a learner that is about to change waits for him, and copies
only what nobody has read to its end. So a step waits for no more of it than it does not overlap
with, `max(0, reading - forward and backward)`, and there is no second state in memory. Source:
DataStates-LLM, arXiv 2406.10707, §4, which copies; we read on, for who saves is waited for anyway.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Condition
from typing import Generic, TypeVar

S = TypeVar("S")


class Snapshot(Generic[S]):
    """`look` is the state where it lies, `copy` one that nothing changes any more."""

    def __init__(self, copy: Callable[[], S], look: Callable[[], S] | None = None) -> None:
        self._copy, self._look = copy, look or copy
        self._state: S | None = None
        self._gone = self._read = False
        self._changed = Condition()
        self.waited_s = 0.0
        """How long the learner stood still for whoever read, and for the copy."""

    @contextmanager
    def reading(self) -> Iterator[S]:
        """The state, which does not change within. Once somebody has come to the end without an
        error nobody needs it any more: then RuntimeError is raised.
        """
        with self._changed:
            if self._gone:
                msg = "a snapshot that was read has no state any more"
                raise RuntimeError(msg)
            self._read = True
        gone = False
        try:
            yield self._look() if self._state is None else self._state
            gone = True
        finally:
            with self._changed:
                self._read, self._gone = False, gone
                self._state = None if gone else self._state
                self._changed.notify_all()

    def settle(self) -> None:
        """Called by the learner before it changes: what is not read then is copied."""
        began = time.monotonic()
        with self._changed:
            self._changed.wait_for(lambda: not self._read)
            if self._state is None and not self._gone:
                self._state = self._copy()
        self.waited_s += time.monotonic() - began
