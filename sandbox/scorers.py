"""What judges a trajectory that has ended: plain functions, several at once, each with a weight.

Every trajectory yields one record. Only one that finished is judged; of the others the total is
None and the reason says how they ended: nobody knows what they would have earned. A scorer that
raises, or gives no finite number, has the value None with the reason, and then so has the total.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from sandbox.environment import make_plain
from sandbox.foreign import complaint, foreign, load
from schemas.errors import ProgramFailed, Refused, RollcallError
from schemas.foreign_text import REASON_CHARS, plain
from schemas.messages import Reward, ScoredTrajectory, Task, Trajectory

Scorer = Callable[[Trajectory], float]

SHIPPED: Mapping[str, str] = {
    "environment_return": "sandbox.scorers:environment_return",
    "reasoning_gym": "sandbox.scorers:reasoning_gym",
}


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
    """Judge a trajectory, read at the given place of the log; a scorer that raises is survived."""
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
    try:
        with foreign("raised", "it raised"):
            value = float(_scorer(spec.name)(trajectory))
    except ProgramFailed:
        raise  # it did not come back: no time is left for the others
    except RollcallError as error:
        return Reward(spec.name, None, plain(str(error), REASON_CHARS), spec.weight)
    if not math.isfinite(value):
        return Reward(spec.name, None, f"it gave {value}", spec.weight)
    return Reward(spec.name, value, weight=spec.weight)


@cache
def _scorer(name: str) -> Scorer:
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
