"""A learner's state as it is now, copied while nothing changes it yet.

The copy is made by whoever is first: another thread that wants it, or the learner itself just
before its weights change. So a step waits for no more of it than it does not overlap with:
`max(0, copying - forward and backward)`. Source: DataStates-LLM, arXiv 2406.10707, §4.
"""

import time
from collections.abc import Callable
from threading import Lock
from typing import Generic, TypeVar

S = TypeVar("S")


class Snapshot(Generic[S]):
    """`copy` reads what the learner holds; it is called once at most, on either thread."""

    def __init__(self, copy: Callable[[], S]) -> None:
        self._copy: Callable[[], S] | None = copy
        self._state: S | None = None
        self._lock = Lock()
        self.waited_s = 0.0
        """How long the learner stood still for the copy."""

    def state(self) -> S:
        """The copy; raises RuntimeError once nobody needs it any more."""
        self._make()
        if self._state is None:
            msg = "a snapshot that was let go of has no state"
            raise RuntimeError(msg)
        return self._state

    def settle(self) -> None:
        """Called by the learner before it changes: where a copy is wanted it is made then."""
        began = time.monotonic()
        self._make()
        self.waited_s += time.monotonic() - began

    def let_go(self) -> None:
        """Nobody needs it any more: its memory is given back."""
        with self._lock:
            self._state = self._copy = None

    def _make(self) -> None:
        with self._lock:
            if self._copy is not None:
                self._state, self._copy = self._copy(), None
