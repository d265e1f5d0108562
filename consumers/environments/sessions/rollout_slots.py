"""The slots of one attempt at a rollout: held by its sessions, or kept for them.

A session that holds a slot and waits for one of another class could deadlock with another that
holds that and waits for the first. So all take slots in one order: a session that needs another one
beside it, as an agent needs its task's, takes a slot for that one together with its own, unless one
is held. It is kept until both have ended. A session that lacks only some slots goes before those
that hold none, or it would wait behind sessions that wait for the slots that it holds.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence

from rollcall.consumers.environments.sessions.slots import Slots


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
        """Wait for one slot of each own class, and make sure that those beside it exist.

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
        """Release the spare slots, except those that a session needs beside it."""
        for name, spare in self._spare.items():
            needed = self._needed[name] > 0 and not self._held[name]
            self._spare[name] = min(spare, int(needed))
            for _ in range(spare - self._spare[name]):
                self._slots.give((name,))
