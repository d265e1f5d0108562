"""A snapshot of a learner's state: read in place, or copied before the state changes.

A learner that is about to change waits for a reader, and copies the state only if it was not read
completely. So a step waits only for the part of the reading that does not overlap with it,
`max(0, reading - forward and backward)`, and usually no second state is in memory. Source:
DataStates-LLM, arXiv 2406.10707, §4, which copies; here the reader continues in place, since the
save is waited for anyway.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Condition
from typing import Generic, TypeVar

S = TypeVar("S")


class Snapshot(Generic[S]):
    """A snapshot; `look` returns the state in place, `copy` an independent copy."""

    def __init__(self, copy: Callable[[], S], look: Callable[[], S] | None = None) -> None:
        self._copy, self._look = copy, look or copy
        self._state: S | None = None
        self._gone = self._read = False
        self._changed = Condition()
        self.waited_s = 0.0
        """The time that the learner waited for readers and for the copy, in seconds."""

    @contextmanager
    def reading(self) -> Iterator[S]:
        """Provide the state, which does not change inside the context. After one complete reading
        without an error the state is released, and later calls raise RuntimeError.
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
        """Wait for a reader and copy an unread state; the learner calls it before it changes."""
        began = time.monotonic()
        with self._changed:
            self._changed.wait_for(lambda: not self._read)
            if self._state is None and not self._gone:
                self._state = self._copy()
        self.waited_s += time.monotonic() - began
