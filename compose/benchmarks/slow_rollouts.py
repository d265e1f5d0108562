"""Slow rollouts: a policy and an environment with long-tailed latencies, by seed.

An answer takes a log-normal time (sigma 1), and so does an action, of which 5 % are stragglers that
take ten times as long. The time is a function of the call's seed and of the answer, so the same
rollouts have the same latencies in any order.
"""

import asyncio
import math
import time
from random import Random

from rollcall.inference.engine import EngineAnswer
from rollcall.inference.scripted import ScriptedEngine
from rollcall.sandbox.environment import Observation
from rollcall.schemas.ids import digest
from rollcall.schemas.messages import Limits, ModelCall, RolloutRequest, Task

POLICY = "slow"
TURNS = 4
MEDIAN_S = 0.1
"""The median time of an answer, and of an action that is no straggler."""
SIGMA = 1.0
STRAGGLERS, STRAGGLE = 0.05, 10.0


def latency_s(*place: object, stragglers: float = 0.0, median_s: float = MEDIAN_S) -> float:
    """Return log-normal seconds; the same for the same arguments."""
    draw = Random(digest(*place))
    slow = STRAGGLE if draw.random() < stragglers else 1.0
    return slow * median_s * math.exp(SIGMA * draw.gauss(0.0, 1.0))


class SlowEngine(ScriptedEngine):
    """An engine that answers each call after its latency, any number of them in parallel."""

    def __init__(self, median_s: float = MEDIAN_S) -> None:
        super().__init__(POLICY, lambda call: f"{call.seed:x}")
        self.median_s = median_s
        self._due: dict[bytes, float] = {}

    def add(self, call: ModelCall) -> None:
        wait_s = latency_s("answer", call.seed, median_s=self.median_s)
        self._due[call.command_id] = time.monotonic() + wait_s
        super().add(call)

    def step(self) -> list[EngineAnswer]:
        now, waiting = time.monotonic(), list(self._waiting.ready)
        self._waiting.ready.clear()
        for call in waiting:
            if self._due[call.command_id] <= now:
                del self._due[call.command_id]
                self._waiting.ready.append(call)
        answers = super().step()
        self._waiting.ready.extend(call for call in waiting if call.command_id in self._due)
        return answers


class SlowEnvironment:
    """An environment with a constant observation, returned after a latency."""

    replayable = True

    def __init__(self, turns: int = TURNS, median_s: float = MEDIAN_S) -> None:
        self.turns, self.median_s = turns, median_s
        self.taken = 0

    async def open(self, seed: int) -> Observation:
        return Observation(f"task {seed}")

    async def step(self, action: str) -> Observation:
        self.taken += 1
        place = "action", self.taken, action
        await asyncio.sleep(latency_s(*place, stragglers=STRAGGLERS, median_s=self.median_s))
        return Observation(f"turn {self.taken}", terminated=self.taken >= self.turns)

    async def close(self) -> None:
        """Do nothing, as there is nothing to release."""


def template(run_id: str, median_s: float = MEDIAN_S) -> RolloutRequest:
    """Return the common part of a run's requests."""
    task = Task(
        environment="rollcall.compose.benchmarks.slow_rollouts:SlowEnvironment",
        environment_config=f'{{"median_s": {median_s}}}',
    )
    limits = Limits(max_turns=TURNS)
    return RolloutRequest("", task, policy_id=POLICY, run_id=run_id, purpose="train", limits=limits)
