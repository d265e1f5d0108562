"""The workload of a chaos run: rollouts of many kinds, drawn from the seed and their number.

It has several turns, parallel calls, failures that are retried, answers after their deadline,
sessions that cannot be rebuilt, rollouts with a short deadline, cancels of rollouts and of groups,
and agents in separate processes. Every model server gives different answers, so that it matters
which one counts. In a shell, answers are commands whose output shows all earlier commands.
"""

import heapq
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from hashlib import blake2b
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

from rollcall.consumers.agents.effects import (
    Agent,
    CallModel,
    Finish,
    ModelAnswer,
    Reset,
    Step,
    Task,
    WishFailed,
    user,
)

# The digests of these programs are recorded; an older release beside ours knows this name.
from rollcall.consumers.agents.effects import Effect as Wish
from rollcall.inference.engine import EngineAnswer
from rollcall.inference.scripted import Script, ScriptedEngine
from rollcall.sandbox.environment import Observation
from rollcall.sandbox.tasks.scripted_policies import BARE
from rollcall.schemas import messages
from rollcall.schemas.errors import WorkFailed
from rollcall.schemas.messages import Control, Limits, ModelCall, RolloutRequest

POLICY = "chaos"
HERE = "compose.chaos.workload"
"""This module, by the name that releases before 0.2.0, which may run beside ours, know as well."""
GROUP = 4
AGENTS = ("react", f"{HERE}:side_by_side", f"{HERE}:forgiving")
SHELL = "shell"
AGENT_OF_OTHERS = "hosted"
FUNCTIONS = ("sequential", "side_by_side", "noisy")
"""Functions of `rollcall.compose.chaos.hosted_agents`."""
HOSTED = 0.05
"""The share of rollouts with a process, as a function or, one in `COMMANDS`, a command."""
COMMANDS = 4
CATCH_UP_S = 2.0
HEAVY = 0.02
"""The share with observations too heavy for the log, which are in the object store."""
HEAVY_BYTES = 65_536
BOXED = 0.1
"""The share that acts in a shell, each in its own box."""
BOX_TIMEOUT_S = 60.0
"""The timeout of a command and of a step: longer than any pause, so that none is cut off."""
STEP_S = 0.005
"""The duration of a decode step, for any batch."""
WORDS = ("left", "right", "on", "back", "wait")


# Agents


def side_by_side(task: Task) -> Agent:
    """Ask twice at once in every turn, and act on whatever was answered."""
    observation = yield Reset()
    for _ in range(task.max_turns):
        wishes: list[Wish] = [
            CallModel([user(f"{observation.text} {way}?")]) for way in ("left", "right")
        ]
        answers = yield wishes
        texts = [answer.text for answer in answers if isinstance(answer, ModelAnswer)]
        observation = yield Step(" ".join(texts))
        if observation.done:
            break
    yield Finish(observation.text)


def forgiving(task: Task) -> Agent:
    """Whatever fails, go on to the next wish; the number of failures is the result."""
    failures = 0
    calls = [CallModel([user(text)]) for text in "ab"]
    wishes: list[Wish] = [Reset(), calls[0], Step("on"), calls[1], Step("on")]
    for wish in wishes:
        try:
            yield wish
        except WishFailed:
            failures += 1
    yield Finish(f"{failures} failed, {task.rng.randrange(100)}")


# Environment


class Corridor:
    """An environment of several doors; observations depend on the seed and all actions so far."""

    def __init__(self, turns: int = 4, replayable: bool = True, heavy: int = 0) -> None:
        self.replayable = replayable
        self.left = turns
        self.heavy = heavy
        self.seen = blake2b(digest_size=4)

    def open(self, seed: int) -> Observation:
        return self._show(str(seed))

    def step(self, action: str) -> Observation:
        self.left -= 1
        return self._show(action)

    def close(self) -> None:
        """Do nothing, as there is nothing to release."""

    def _show(self, action: str) -> Observation:
        self.seen.update(f"{action}\0".encode())
        done = self.left <= 0
        shown = f"door {self.seen.hexdigest()}" + " so it goes" * (self.heavy // 11)
        return Observation(shown, reward=float(done), terminated=done)


# Policy


def script(server: str) -> Script:
    """Return a script with a random fate per call and try; each server answers differently."""
    spoken = count()

    def say(call: ModelCall) -> str:
        dice = _dice(call, "fate")
        if dice.random() < 0.03:
            code = "overloaded"
            raise WorkFailed(code, "too much to do", retriable=True)
        said = f"{dice.choice(WORDS)} {server} {next(spoken)}"
        return SHELL_COMMAND.format(said) if _is_shell(call) else said

    return say


SHELL_COMMAND = "echo {} >> path; cat path"


def _is_shell(call: ModelCall) -> bool:
    """Return True if the last observation is a shell's: its beginning, or a command's result."""
    shown = call.messages[-1].content if call.messages else ""
    return BARE in shown or shown.startswith("exit code ")


def shown_by_shell(commands: Sequence[str]) -> str:
    """Return the output of the last command if all have run, each once and in this order."""
    before, after = SHELL_COMMAND.split("{}")
    said = (command.removeprefix(before).removesuffix(after) for command in commands)
    return "exit code 0\n" + "".join(f"{each}\n" for each in said)


def delay_s(call: ModelCall) -> float:
    """Return the delay of a call: mostly short, sometimes long, rarely beyond any deadline."""
    dice = _dice(call, "delay")
    longest = dice.choices((0.3, 3.0, 30.0), (96.5, 3, 0.5))[0]
    return dice.uniform(longest / 10, longest)


def queues(call: ModelCall) -> bool:
    """Return True if a call spends its delay in the queue (every second one), else it runs."""
    return _dice(call, "queue").random() < 0.5


def _dice(call: ModelCall, what: str) -> Random:
    return Random(f"{what}/{call.seed}/{call.tries}")


class UnhurriedEngine(ScriptedEngine):
    """A scripted engine whose calls take the time of `delay_s`.

    A call that is still queued at its deadline to begin is returned; one that has begun is
    answered, even if late.
    """

    def __init__(
        self, policy_id: str, script: Script, clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(policy_id, script)
        self._clock = clock
        self._later: list[tuple[float, bytes, ModelCall]] = []

    def add(self, call: ModelCall) -> None:
        heapq.heappush(self._later, (self._clock() + delay_s(call), call.command_id, call))

    def step(self) -> list[EngineAnswer]:
        time.sleep(STEP_S)
        now = self._clock()
        while self._later and self._later[0][0] <= now:
            super().add(heapq.heappop(self._later)[2])
        return super().step()

    def busy(self) -> bool:
        return bool(self._later) or super().busy()

    def expire(self, now_ms: int) -> list[ModelCall]:
        late = [c for *_, c in self._later if c.not_after_ms < now_ms and queues(c)]
        if late:
            gone = {id(call) for call in late}
            self._keep(lambda call: id(call) not in gone)
        return late + super().expire(now_ms)

    def abort(self, rollout_id: str, attempt: int) -> None:
        super().abort(rollout_id, attempt)
        self._keep(lambda call: call.rollout_id != rollout_id or call.attempt > attempt)

    def _keep(self, stays: Callable[[ModelCall], bool]) -> None:
        self._later = [each for each in self._later if stays(each[2])]
        heapq.heapify(self._later)


# Requests


def run_id(seed: int) -> str:
    return f"chaos-{seed}"


def request(
    seed: int, number: int, *, hosts: bool = True, boxes: Sequence[Mapping[str, str]] = ()
) -> RolloutRequest:
    """Return the rollout of this number; without `hosts` none has its own process.

    `boxes` are the kinds of boxes for shells, as in their config; without any, there are no shells.
    """
    dice, boxed = Random(f"hosted/{seed}/{number}"), Random(f"boxed/{seed}/{number}")
    asked = _request(seed, number, heavy=hosts)
    if hosts and dice.random() < HOSTED:
        return _hosted(asked, dice)
    return _boxed(asked, boxed, boxes) if boxes and boxed.random() < BOXED else asked


def _boxed(
    asked: RolloutRequest, dice: Random, boxes: Sequence[Mapping[str, str]]
) -> RolloutRequest:
    """Return the request with a shell, which may be rebuilt and restarted."""
    mode = dice.choice(("persistent", "persistent", "ephemeral"))
    config = {
        **dice.choice(boxes),
        "mode": mode,
        "max_steps": dice.randint(3, 8),
        "timeout_s": BOX_TIMEOUT_S,
    }
    limits = replace(asked.limits, max_tries=4, max_attempts=4, step_timeout_s=BOX_TIMEOUT_S)
    task = replace(asked.task, environment=SHELL, environment_config=json.dumps(config))
    return replace(asked, agent="react", task=task, limits=limits)


def _hosted(asked: RolloutRequest, dice: Random) -> RolloutRequest:
    """Return the request with an agent in its own process."""
    file, function = str(Path(__file__).with_name("hosted_agents.py")), dice.choice(FUNCTIONS)
    config: dict[str, Any] = {"turns": dice.randint(2, 4), "catch_up_s": CATCH_UP_S}
    if dice.randrange(COMMANDS):
        config |= {"agent": "python", "function": f"{file}:{function}"}
    else:
        config |= {"agent": "command", "argv": [sys.executable, "-I", file, function]}
    return replace(asked, agent=AGENT_OF_OTHERS, agent_config=json.dumps(config))


def _request(seed: int, number: int, *, heavy: bool) -> RolloutRequest:
    dice = Random(f"request/{seed}/{number}")
    config: dict[str, Any] = {"turns": dice.randint(2, 5), "replayable": dice.random() < 0.7}
    if heavy and Random(f"heavy/{seed}/{number}").random() < HEAVY:
        config["heavy"] = HEAVY_BYTES + 1000
    limits = Limits(
        max_turns=16,
        max_tries=dice.choice((1, 4, 4, 4)),
        max_attempts=dice.choice((1, 4)),
        call_timeout_s=dice.choice((2.0, 10.0, 10.0)),
        step_timeout_s=10.0,
        rollout_timeout_s=2.0 if dice.random() < 0.05 else 600.0,
    )
    task = messages.Task(f"{HERE}:Corridor", json.dumps(config), seed=number, prompt="Go on.")
    return RolloutRequest(
        rollout_id=f"chaos-{seed}-{number}",
        task=task,
        agent=dice.choice(AGENTS),
        policy_id=POLICY,
        run_id=run_id(seed),
        group_id=f"chaos-{seed}-group-{number // GROUP}",
        group_size=GROUP,
        limits=limits,
    )


def cancel(seed: int, number: int) -> Control | None:
    """Return the cancel to send after this request, of itself or of its group; mostly none."""
    dice = Random(f"cancel/{seed}/{number}")
    victim = request(seed, number)
    if number % GROUP == GROUP - 1 and dice.random() < 0.05:
        return Control("cancel", group_id=victim.group_id, reason="chaos")
    if dice.random() < 0.02:
        return Control("cancel", rollout_id=victim.rollout_id, reason="chaos")
    return None
