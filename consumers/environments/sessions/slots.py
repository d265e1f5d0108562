"""Slots for resources of which a worker has a limited number, such as processes of agents.

A session that holds a slot and waits for one of another class could deadlock with another that
holds that and waits for the first. So all take slots in one order: a session that needs another one
beside it, as an agent needs its task's, takes a slot for that one together with its own, unless one
is held. It is kept until both have ended. A session that lacks only some slots goes before those
that hold none, or it would wait behind sessions that wait for the slots that it holds.

This is not asyncio's Semaphore, which before Python 3.11.9 loses a slot if a waiter that was just
served is cancelled while others wait.
"""

import asyncio
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from rollcall.schemas.errors import FailureCode, WorkFailed
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
                raise WorkFailed(FailureCode.BAD_CONFIG, msg, retriable=False)

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


class RolloutSlots:
    """The slots that the sessions of one attempt hold together; for one event loop."""

    def __init__(self, slots: Slots) -> None:
        self._slots = slots
        self._turn = asyncio.Lock()
        """Held by the session that waits in the queue; the others wait behind it."""
        self._held = Counter[str]()
        self._spare = Counter[str]()
        """Slots that are taken and held by no session."""
        self._needed = Counter[str]()
        """Slots needed beside the sessions that hold or wait for some."""

    async def take(
        self, own: Sequence[str], beside: Sequence[str], stands: Callable[[], None]
    ) -> None:
        """Wait for one slot of each own class, and ensure the further ones that it needs.

        Like `Slots.take`; give back once, with the same arguments.
        """
        self._needed.update(beside)
        try:
            if self._turn.locked():
                stands()
            async with self._turn:
                await self._take(own, beside, stands)
        except BaseException:
            self._needed.subtract(beside)
            self._let_go()
            raise

    async def _take(
        self, own: Sequence[str], beside: Sequence[str], stands: Callable[[], None]
    ) -> None:
        kept = [name for name in own if self._spare[name]]
        more = [name for name in beside if not self._held[name] + self._spare[name]]
        self._spare.subtract(kept)
        # In one request, so that all attempts take slots in the same order.
        wanted = [name for name in own if name not in kept] + more
        try:
            if wanted:
                ahead = bool(kept) or any((+self._held).values())
                await self._slots.take(wanted, stands, ahead=ahead)
        except BaseException:
            self._spare.update(kept)
            raise
        self._held.update(own)
        self._spare.update(more)

    def give(self, own: Sequence[str], beside: Sequence[str]) -> None:
        """Give back the slots of a `take` with the same arguments."""
        self._needed.subtract(beside)
        self._held.subtract(own)
        self._spare.update(own)
        self._let_go()

    def _let_go(self) -> None:
        """Release the spare slots, except those that a session still needs."""
        for name, spare in self._spare.items():
            needed = self._needed[name] > 0 and not self._held[name]
            self._spare[name] = min(spare, int(needed))
            for _ in range(spare - self._spare[name]):
                self._slots.give((name,))
