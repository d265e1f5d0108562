"""The slots of one attempt at a rollout: what its sessions hold, and what is kept for them.

Whoever holds a slot and waits for one of another class may meet somebody who holds that and waits
for the first; both would stand there until their time is over. So all take them in one order: a
session that has another one beside it, as an agent has its task's, takes a slot for that one
together with its own, unless there is one. It is kept until they have both ended. And who lacks
only some goes before who has none, or he would wait behind somebody who waits for what he holds.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence

from consumers.environments.slots import Slots


class RolloutSlots:
    """What the sessions of one attempt have taken together; for one event loop."""

    def __init__(self, slots: Slots) -> None:
        self._slots = slots
        self._turn = asyncio.Lock()
        """One of its sessions stands in line, the others behind it."""
        self._held = Counter[str]()
        self._spare = Counter[str]()
        """Taken, and held by no session."""
        self._needed = Counter[str]()
        """By sessions that hold slots or wait for some: what others beside them are to have."""

    async def take(
        self, own: Sequence[str], beside: Sequence[str], stands: Callable[[], None]
    ) -> None:
        """Wait for one of each of its own, and see that there are those beside it.

        As `Slots.take`; to be given back once, with the same words.
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
        """Give back what was taken with these words."""
        self._needed.subtract(beside)
        self._held.subtract(own)
        self._spare.update(own)
        self._let_go()

    def _let_go(self) -> None:
        """Of what no session holds, all but what one of them needs to be there."""
        for name, spare in self._spare.items():
            needed = self._needed[name] > 0 and not self._held[name]
            self._spare[name] = min(spare, int(needed))
            for _ in range(spare - self._spare[name]):
                self._slots.give((name,))
