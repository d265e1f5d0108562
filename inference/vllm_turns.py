"""One vLLM shared by all engines of a policy, as each costs gigabytes and most of a minute.

An engine with work loads its weights and takes a turn; the others wait. A turn lasts a multiple of
the time that its start took, so that at most a tenth of the time goes into exchanging weights,
for any number of versions. An engine without work keeps its turn until another has work.
"""

import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from rollcall.inference.vllm_core import CoreOptions, VllmCore

TURN = 10
"""The duration of a turn while others wait, as a multiple of the time that its start took."""


class Guest(Protocol):
    """An engine that takes turns."""

    def busy(self) -> bool:
        """Return True if it has anything to do."""
        ...

    def pause(self, core: VllmCore) -> None:
        """Stop all requests; each continues in a later turn from the tokens that it has."""
        ...


class SharedVllm:
    """A vLLM and the engine whose turn it is; `start` makes it when weights are first staged."""

    def __init__(
        self,
        options: CoreOptions,
        start: Callable[[CoreOptions], VllmCore],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.options = options
        self.core: VllmCore | None = None
        self._make = start
        self._clock = clock
        self._starting = threading.Lock()
        self._guest: weakref.ref[Guest] | None = None
        self._since = self._took_s = 0.0

    def start(self) -> None:
        """Start vLLM unless it runs; from any thread. Raises EngineDied if it does not start."""
        with self._starting:
            if self.core is None:
                self.core = self._make(self.options)

    def guest(self) -> Guest | None:
        """Return the engine whose weights are loaded; None if they belong to none."""
        return None if self._guest is None else self._guest()

    def is_free(self) -> bool:
        """Return True if another engine may begin a turn."""
        guest = self.guest()
        over = self._clock() - self._since >= TURN * self._took_s
        return guest is None or over or not guest.busy()

    @contextmanager
    def turn_of(self, guest: Guest) -> Iterator[VllmCore]:
        """Stop the engine that has the turn; the caller loads its weights within the context."""
        assert self.core is not None
        started, before = self._clock(), self.guest()
        if before is not None:
            before.pause(self.core)
        self._guest = weakref.ref(guest)
        try:
            yield self.core
        finally:
            self._since = self._clock()
            self._took_s = self._since - started

    def leave(self) -> None:
        """Mark the weights in vLLM as belonging to no engine."""
        self._guest = None
