"""What judges a trajectory that has ended: functions, several at once, each with a weight.

Every trajectory yields one record. Only one that finished is judged; of the others the total is
None and the reason says how they ended: nobody knows what they would have earned. A scorer that
raises, or gives no finite number, has the value None with the reason, and then so has the total.

A scorer that waits for something outside, such as a box, is an `async def`, with a parameter
`host` where it needs what its worker offers (`sandbox.waiting_scores`). `score` leaves its reward
open, and `filled` puts it in.
"""

import inspect
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, NamedTuple

from sandbox.environment import make_plain
from sandbox.foreign import complaint, foreign, load
from sandbox.host import ScoringHost
from schemas.errors import ProgramFailed, Refused, RollcallError, WorkFailed
from schemas.foreign_text import REASON_CHARS, plain
from schemas.messages import Reward, ScoredTrajectory, Task, Trajectory


class Explained(NamedTuple):
    """A reward with words for people, as a scorer may give it."""

    value: float
    reason: str


Scorer = Callable[[Trajectory], float | Explained]
WaitingScorer = Callable[..., Awaitable[float | Explained]]
"""Given the trajectory, and a `host` if it has a parameter of that name."""

SHIPPED: Mapping[str, str] = {
    "environment_return": "sandbox.scorers:environment_return",
    "no_submission": "sandbox.grading.patch_scorers:no_submission",
    "reasoning_gym": "sandbox.scorers:reasoning_gym",
    "resolved": "sandbox.grading.patch_scorers:resolved",
    "tests_passed": "sandbox.grading.patch_scorers:tests_passed",
}

OPEN = "it waits, and nobody here waits for it"
"""The reason of a reward that is not filled in."""


@dataclass(frozen=True, slots=True)
class ScorerSpec:
    """A scorer by name (ours, or yours as `module:function`) and its weight in the total."""

    name: str
    weight: float = 1.0


def check_scorer(name: str) -> None:
    """Refuse a name behind which there is nothing, without importing what is behind it.

    Raises Refused.
    """
    wrong = complaint("scorer", name, SHIPPED)
    if wrong:
        raise Refused(wrong)


def score(
    trajectory: Trajectory,
    specs: Sequence[ScorerSpec],
    *,
    scoring_id: str,
    source_topic: str,
    source_partition: int,
    source_offset: int,
) -> ScoredTrajectory:
    """Judge a trajectory, read at the given place of the log; a scorer that raises is survived.

    The rewards of scorers that wait are open: None, since they wait.
    """
    if trajectory.status == "finished":
        rewards = tuple(_reward(spec, trajectory) for spec in specs)
        total, reason = _total(rewards)
    else:
        rewards, total = (), None
        reason = "/".join(filter(None, (trajectory.status, trajectory.code)))
    return ScoredTrajectory(
        scoring_id=scoring_id,
        trajectory=trajectory,
        rewards=rewards,
        total=total,
        source_topic=source_topic,
        source_partition=source_partition,
        source_offset=source_offset,
        reason=reason,
    )


def waiting(specs: Sequence[ScorerSpec]) -> tuple[int, ...]:
    """Which of some scorers wait, by number; imports the modules that they are in."""
    return tuple(number for number, spec in enumerate(specs) if _waits(spec.name))


def filled(scored: ScoredTrajectory, rewards: Mapping[int, Reward]) -> ScoredTrajectory:
    """The same with these rewards, by number, in place of what was left open."""
    all_ = tuple(rewards.get(number, each) for number, each in enumerate(scored.rewards))
    total, reason = _total(all_)
    return replace(scored, rewards=all_, total=total, reason=reason)


def call_of(name: str, trajectory: Trajectory, host: ScoringHost) -> Awaitable[object]:
    """Begin with a scorer that waits; it raises anything, and WorkFailed where there is none."""
    scorer: WaitingScorer = _scorer(name)
    return scorer(trajectory, host=host) if _takes_host(name) else scorer(trajectory)


def environment_return(trajectory: Trajectory) -> float:
    """The sum of the rewards of all steps. Raises ValueError where they lie behind a claim."""
    if trajectory.steps is None:
        msg = f"the steps of rollout {trajectory.rollout_id!r} lie elsewhere; resolve its claim"
        raise ValueError(msg)
    return sum((step.reward for step in trajectory.steps), start=0.0)


def reasoning_gym(trajectory: Trajectory) -> float:
    """Grade the last words of the assistant against the entry, made again from the task.

    What the environment said does not count. Entries that differ between processes cannot be
    made again: score those by environment_return. Raises ValueError.
    """
    task = _task(trajectory)
    answer = _last_answer(trajectory)
    entry = make_plain("reasoning_gym", task.environment_config)
    if not entry.replayable:
        msg = f"the entries of {task.environment_config} differ between processes"
        raise ValueError(msg)
    entry.open(task.seed)
    return entry.step(answer).reward


def _reward(spec: ScorerSpec, trajectory: Trajectory) -> Reward:
    if _waits(spec.name):
        return Reward(spec.name, None, OPEN, spec.weight)
    try:
        with foreign("raised", "it raised"):
            value, said = explained(_scorer(spec.name)(trajectory))
    except ProgramFailed:
        raise  # it did not come back: no time is left for the others
    except RollcallError as error:
        return Reward(spec.name, None, plain(str(error), REASON_CHARS), spec.weight)
    return given(spec, value, said)


def explained(result: object) -> tuple[float, str]:
    """What a scorer gave, and what it says of that; raises whatever its number raises."""
    if isinstance(result, Explained):
        return float(result.value), plain(result.reason, REASON_CHARS)
    return float(result), ""  # type: ignore[arg-type]


def given(spec: ScorerSpec, value: float, said: str) -> Reward:
    """The reward of a scorer that came back."""
    if not math.isfinite(value):
        return Reward(spec.name, None, f"it gave {value}", spec.weight)
    return Reward(spec.name, value, said, spec.weight)


@cache
def _waits(name: str) -> bool:
    """Whether a scorer is an `async def`; what cannot be found says so when it is called."""
    try:
        return inspect.iscoroutinefunction(_scorer(name))
    except WorkFailed:
        return False


@cache
def _takes_host(name: str) -> bool:
    with foreign("bad_config", f"scorer {name!r} hides its parameters"):
        return "host" in inspect.signature(_scorer(name)).parameters


@cache
def _scorer(name: str) -> Callable[..., Any]:
    """Found once: to look for a module takes as long as many a scorer. Raises WorkFailed."""
    return load("scorer", name, SHIPPED)


def _total(rewards: Sequence[Reward]) -> tuple[float | None, str]:
    """The weighted sum, or None and the reason."""
    missing = "; ".join(f"{each.scorer}: {each.reason}" for each in rewards if each.value is None)
    if missing or not rewards:
        return None, missing[:REASON_CHARS] or "no scorer was asked"
    total = math.fsum((each.value or 0.0) * each.weight for each in rewards)
    return (total, "") if math.isfinite(total) else (None, f"the weighted sum is {total}")


def _task(trajectory: Trajectory) -> Task:
    if trajectory.request is None:
        msg = f"rollout {trajectory.rollout_id!r} has no request that could be read"
        raise ValueError(msg)
    task = trajectory.request.task
    if task.environment != "reasoning_gym":
        msg = f"the task's environment is {task.environment!r}, not 'reasoning_gym'"
        raise ValueError(msg)
    return task


def _last_answer(trajectory: Trajectory) -> str:
    """What the assistant said last; of several sequences, the last one in which it spoke."""
    for sequence in reversed(trajectory.sequences or ()):
        for message in reversed(sequence.messages):
            if message.role == "assistant":
                return message.content
    msg = f"the assistant says nothing in rollout {trajectory.rollout_id!r}"
    raise ValueError(msg)
