"""A frozen lake that waits for something at every turn, as one behind a server would."""

import asyncio
from random import Random
from typing import Any

from rollcall.sandbox.environment import Observation
from rollcall.sandbox.environments.gymnasium_text import GymnasiumText

WAITING_LAKE = f"{__name__}:WaitingLake"
DICE = Random(1)


class WaitingLake:
    """The same lake; how long it waits is drawn, and mostly not at all."""

    slot = "hosted"

    def __init__(self, **config: Any) -> None:
        self._lake = GymnasiumText(**config)
        self.replayable = self._lake.replayable

    async def open(self, seed: int) -> Observation:
        await self._wait()
        return self._lake.open(seed)

    async def step(self, action: str) -> Observation:
        await self._wait()
        seen = self._lake.step(action)
        await self._wait()
        return seen

    async def close(self) -> None:
        await self._wait()
        self._lake.close()

    async def _wait(self) -> None:
        if DICE.random() < 0.5:
            await asyncio.sleep(DICE.choice((0.0, 0.0, 0.001)))
