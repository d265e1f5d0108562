"""One vLLM for all engines of a policy, for one costs gigabytes and most of a minute.

Who has work puts its weights in and takes a turn; those of the others wait. A turn lasts so many
times what it took to begin that a tenth of the time, at most, goes into exchanging weights, however
many versions are asked for. An engine without work keeps its place until another has some.
"""

import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from inference.vllm_core import CoreOptions, VllmCore

TURN = 10
"""How many times longer than its beginning a turn lasts where others wait."""


class Guest(Protocol):
    """What takes turns."""

    def busy(self) -> bool:
        """Whether it has anything to do."""
        ...

    def pause(self, core: VllmCore) -> None:
        """Stop all requests; each is asked anew in a later turn, from the tokens that it has."""
        ...


class SharedVllm:
    """A vLLM and who has the turn; `start` makes it when the first weights are staged."""

    def __init__(
        self, options: CoreOptions, start: Callable[[CoreOptions], VllmCore],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self.options = options
        self.core: VllmCore | None = None
        self._make = start
        self._clock = clock
        self._starting = threading.Lock()
        self._guest: weakref.ref[Guest] | None = None
        self._since = self._took_s = 0.0

    def start(self) -> None:
        """Start vLLM unless it runs; from any thread. Raises EngineDied where it does not start."""
        with self._starting:
            if self.core is None:
                self.core = self._make(self.options)

    def guest(self) -> Guest | None:
        """Whose weights are in; None where they are nobody's."""
        return None if self._guest is None else self._guest()

    def is_free(self) -> bool:
        """Whether another than the one that has the turn may begin."""
        guest = self.guest()
        over = self._clock() - self._since >= TURN * self._took_s
        return guest is None or over or not guest.busy()

    @contextmanager
    def turn_of(self, guest: Guest) -> Iterator[VllmCore]:
        """Stop who has the turn; within, the weights are to be put in."""
        assert self.core is not None
        began, before = self._clock(), self.guest()
        if before is not None:
            before.pause(self.core)
        self._guest = weakref.ref(guest)
        try:
            yield self.core
        finally:
            self._since = self._clock()
            self._took_s = self._since - began

    def leave(self) -> None:
        """Say that the weights in vLLM are nobody's."""
        self._guest = None
