"""An environment that waits, as one that does not: for tests that treat both alike."""

import asyncio

from rollcall.sandbox.environment import Observation, WaitingEnvironment


class Driven:
    """Turns an event loop for every call; all of one environment's go through the same."""

    def __init__(self, environment: WaitingEnvironment, runner: asyncio.Runner) -> None:
        self._environment = environment
        self._runner = runner
        self.replayable = environment.replayable

    def open(self, seed: int) -> Observation:
        return self._runner.run(self._environment.open(seed))

    def step(self, action: str) -> Observation:
        return self._runner.run(self._environment.step(action))

    def close(self) -> None:
        self._runner.run(self._environment.close())
