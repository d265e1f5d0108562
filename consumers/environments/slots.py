"""What a worker has only so many of, such as processes of agents, and who is next in line.

Not asyncio's Semaphore: before Python 3.11.9 it loses one where whoever was just let in is
cancelled beside others in line.
"""

import asyncio
from collections import deque
from collections.abc import Mapping

from schemas.errors import WorkFailed
from schemas.names import hint


class Slots:
    """So many of each class; first come, first served. For one event loop."""

    def __init__(self, most: Mapping[str, int]) -> None:
        self.most = dict(most)
        self._free = dict(most)
        self._lines: dict[str, deque[asyncio.Future[None]]] = {name: deque() for name in most}

    @property
    def waiting(self) -> int:
        """How many stand in line."""
        return sum(map(len, self._lines.values()))

    async def take(self, name: str) -> None:
        """Wait for one; to be given back once. Raises WorkFailed for a class that nobody set."""
        if name not in self._free:
            msg = f"no setting says how many {name!r} this worker may hold: put {name} = 64, say, "
            msg += f"into environments.slots; {hint(name, self._free)}"
            raise WorkFailed("bad_config", msg, retriable=False)
        if self._free[name] > 0:  # nobody stands in line, else he would have it
            self._free[name] -= 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._lines[name].append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():  # it was given to us meanwhile
                self.give(name)
            elif turn in self._lines[name]:
                self._lines[name].remove(turn)
            raise

    def give(self, name: str) -> None:
        """Give one back; whoever is first in line has it."""
        line = self._lines[name]
        while line:
            turn = line.popleft()
            if not turn.done():  # else he has just left
                turn.set_result(None)
                return
        self._free[name] += 1
