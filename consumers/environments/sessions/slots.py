"""Slots for resources of which a worker has a limited number, such as processes of agents.

This is not asyncio's Semaphore, which before Python 3.11.9 loses a slot if a waiter that was just
served is cancelled while others wait.
"""

import asyncio
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from rollcall.schemas.errors import WorkFailed
from rollcall.schemas.names import hint


@dataclass(slots=True, eq=False)
class _Place:
    """One place in the queue."""

    names: tuple[str, ...]
    taken: "asyncio.Future[None]"


class Slots:
    """A number of slots per class; several slots are taken together or not at all.

    First come, first served: a waiter is not overtaken by others that want a class that it waits
    for, except by those that hold slots already, since others may wait for these. For one loop.
    """

    def __init__(self, most: Mapping[str, int]) -> None:
        self.most = dict(most)
        self._free = dict(most)
        self._line = OrderedDict[_Place, None]()
        """The queue; a dictionary, so that each place is found at once."""
        self._ahead = OrderedDict[_Place, None]()
        """The places that go before the queue, in order."""
        self._wanted: Counter[str] = Counter()
        """The number of waiting places that want each class."""

    @property
    def waiting(self) -> int:
        """The number of places in both queues."""
        return len(self._line) + len(self._ahead)

    def _check(self, names: Sequence[str]) -> None:
        for name in names:
            if name not in self.most:
                msg = f"no setting says how many {name!r} this worker may hold: put {name} = 64, "
                msg += f"say, into environments.slots; {hint(name, self.most)}"
                raise WorkFailed("bad_config", msg, retriable=False)

    async def take(
        self,
        names: Sequence[str],
        stands: Callable[[], None] | None = None,
        *,
        ahead: bool = False,
    ) -> None:
        """Wait for one slot of each class; give them back once.

        `stands` is called before the wait, if they are not free at once. `ahead` is for a caller
        that holds other slots, which goes before all that hold none. Raises WorkFailed for a class
        that is not configured.
        """
        self._check(names)
        place = _Place(tuple(dict.fromkeys(names)), asyncio.get_running_loop().create_future())
        behind = not ahead and any(self._wanted[name] for name in place.names)
        (self._ahead if ahead else self._line)[place] = None
        self._wanted.update(place.names)
        if not behind:
            self._deal()
        try:
            if not place.taken.done():
                if stands is not None:
                    stands()
                await place.taken
        except BaseException:
            if place in self._line or place in self._ahead:
                self._leave(place)
                self._deal()
            else:  # it was served just before
                self.give(place.names)
            raise

    def give(self, names: Sequence[str]) -> None:
        """Give one of each back; the first in the queue gets it."""
        for name in dict.fromkeys(names):
            self._free[name] += 1
        self._deal()

    def _leave(self, place: _Place) -> None:
        del (self._ahead if place in self._ahead else self._line)[place]
        self._wanted.subtract(place.names)

    def _take(self, names: Sequence[str]) -> None:
        for name in names:
            self._free[name] -= 1

    def _deal(self) -> None:
        """Serve the queue in order; a class that an earlier place waits for is kept for it.

        Stop as soon as no free class is wanted: a queue of thousands is not walked at each end of a
        session.
        """
        kept, served = set[str](), list[_Place]()
        for place in chain(self._ahead, self._line):
            if not self._may_serve(kept):
                break
            if place.taken.done():  # cancelled, and about to leave
                continue
            if kept.isdisjoint(place.names) and all(self._free[name] > 0 for name in place.names):
                self._take(place.names)
                served.append(place)
            else:
                kept.update(place.names)
        for place in served:
            self._leave(place)
            place.taken.set_result(None)

    def _may_serve(self, kept: set[str]) -> bool:
        """Return True if a waiting place wants a class that is free and not kept."""
        free = (name for name, count in self._free.items() if count > 0 and name not in kept)
        return any(self._wanted[name] for name in free)
