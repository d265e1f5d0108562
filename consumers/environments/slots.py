"""What a worker has only so many of, such as processes of agents, and who is next in line."""

import asyncio
from collections.abc import Mapping

from schemas.errors import WorkFailed
from schemas.names import hint


class Slots:
    """So many of each class; first come, first served. For one event loop."""

    def __init__(self, most: Mapping[str, int]) -> None:
        self.most = dict(most)
        self._free = {name: asyncio.Semaphore(number) for name, number in most.items()}
        self.waiting = 0
        """How many stand in line."""

    async def take(self, name: str) -> None:
        """Wait for one; to be given back once. Raises WorkFailed for a class that nobody set."""
        if name not in self._free:
            msg = f"no setting says how many {name!r} this worker may hold: put {name} = 64, say, "
            msg += f"into environments.slots; {hint(name, self._free)}"
            raise WorkFailed("bad_config", msg, retriable=False)
        self.waiting += 1
        try:
            await self._free[name].acquire()
        finally:
            self.waiting -= 1

    def give(self, name: str) -> None:
        """Give one back; whoever is first in line has it."""
        self._free[name].release()
