"""Scorers of trajectories: functions, of which several are applied, each with a weight.

Every trajectory yields one record. Only finished trajectories are scored; for others the total is
None and the reason is their status, since their reward is unknown. If a scorer raises, or returns
no finite number, its value is None with the reason, and so is the total. A scorer of single tokens
returns a `PerToken` (`rollcall.sandbox.token_scores`).

A scorer that waits for something, such as a box, is an `async def`, with a parameter `host` if it
uses its worker's services (`rollcall.sandbox.async_scoring`). `score` leaves its reward open, and
`with_rewards` fills it in.
"""

import inspect
import math
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, NamedTuple

import orjson

from rollcall.sandbox.environment import make_plain
from rollcall.sandbox.host import ScoringHost
from rollcall.sandbox.token_scores import PerToken, packed_scores
from rollcall.sandbox.user_code import complaint, convert_errors, load
from rollcall.schemas.errors import FailureCode, ProgramFailed, Refused, RollcallError, WorkFailed
from rollcall.schemas.messages import Reward, ScoredTrajectory, Task, TokenScores, Trajectory
from rollcall.schemas.untrusted_text import REASON_CHARS, clean_text


class Explained(NamedTuple):
    """A reward with an explanation for people, which a scorer may return."""

    value: float
    reason: str


class ScorerResult(NamedTuple):
    """The result of one scorer."""

    reward: Reward
    tokens: tuple[TokenScores, ...] = ()


Scorer = Callable[[Trajectory], float | Explained | PerToken]
WaitingScorer = Callable[..., Awaitable[float | Explained | PerToken]]
"""A function of the trajectory, and of a `host` if it has a parameter of that name."""

SHIPPED: Mapping[str, str] = {
    "environment_return": "rollcall.sandbox.scorers:environment_return",
    "no_submission": "rollcall.sandbox.grading.patch_scorers:no_submission",
    "reasoning_gym": "rollcall.sandbox.scorers:reasoning_gym",
    "resolved": "rollcall.sandbox.grading.patch_scorers:resolved",
    "tests_passed": "rollcall.sandbox.grading.patch_scorers:tests_passed",
    "verdict_right": "rollcall.sandbox.scorers:verdict_right",
}

OPEN = "it waits, and nobody here waits for it"
"""The reason of an open reward."""


@dataclass(frozen=True, slots=True)
class ScorerSpec:
    """A scorer by name (ours, or yours as `module:function`) and its weight in the total."""

    name: str
    weight: float = 1.0
    function: Scorer | None = None
    """The function to call, if it is not the one of that name."""


def check_scorer(name: str) -> None:
    """Refuse an unknown name, without importing its module.

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
    """Score a trajectory, read at the given place of the log; scorers may raise.

    The rewards of asynchronous scorers are left open: None with the reason OPEN.
    """
    results: tuple[ScorerResult, ...] = ()
    if trajectory.status == "finished":
        results = tuple(_opinion(spec, trajectory) for spec in specs)
        total, reason = _total([result.reward for result in results])
    else:
        total = None
        reason = "/".join(filter(None, (trajectory.status, trajectory.code)))
    return ScoredTrajectory(
        scoring_id=scoring_id,
        trajectory=trajectory,
        rewards=tuple(result.reward for result in results),
        total=total,
        source_topic=source_topic,
        source_partition=source_partition,
        source_offset=source_offset,
        reason=reason,
        token_scores=_together(results),
    )


def async_scorer_indices(specs: Sequence[ScorerSpec]) -> tuple[int, ...]:
    """Return the indices of asynchronous scorers; imports their modules."""
    numbered = enumerate(specs)
    return tuple(n for n, spec in numbered if spec.function is None and _waits(spec.name))


def with_rewards(scored: ScoredTrajectory, results: Mapping[int, ScorerResult]) -> ScoredTrajectory:
    """Return the record with open rewards filled in, given by index of the scorer."""
    rewards = tuple(
        results[number].reward if number in results else each
        for number, each in enumerate(scored.rewards)
    )
    total, reason = _total(rewards)
    tokens = scored.token_scores + _together(results[number] for number in sorted(results))
    return replace(scored, rewards=rewards, total=total, reason=reason, token_scores=tokens)


def call_of(name: str, trajectory: Trajectory, host: ScoringHost) -> Awaitable[object]:
    """Call an asynchronous scorer. Raises any exception, and WorkFailed if there is none."""
    scorer: WaitingScorer = _scorer(name)
    return scorer(trajectory, host=host) if _takes_host(name) else scorer(trajectory)


def environment_return(trajectory: Trajectory) -> float:
    """Return the sum of the rewards of all steps. Raises ValueError if they are behind a claim."""
    if trajectory.steps is None:
        msg = f"the steps of rollout {trajectory.rollout_id!r} lie elsewhere; resolve its claim"
        raise ValueError(msg)
    return sum((step.reward for step in trajectory.steps), start=0.0)


def reasoning_gym(trajectory: Trajectory) -> float:
    """Grade the assistant's last message against the entry, which is made again from the task.

    The environment's rewards are ignored. Entries that differ between processes cannot be made
    again: score those by environment_return. Raises ValueError.
    """
    return _graded(_task(trajectory), _last_answer(trajectory))


def verdict_right(trajectory: Trajectory) -> float:
    """Return 1 if the verifier of `solver_verifier` judged the answer that it was shown right.

    It must say yes to an answer that scores 1, and no to others; any other verdict gives 0. It was
    shown the first answer unless the result of the rollout names another. Raises ValueError if the
    result lacks them.
    """
    told = orjson.loads(trajectory.result)
    if not isinstance(told, dict) or not {"first", "verdict"} <= told.keys():
        msg = f"the result of rollout {trajectory.rollout_id!r} names no first answer and verdict"
        raise ValueError(msg)
    shown = told.get("shown", told["first"])
    solved = _graded(_task(trajectory), str(shown)) >= 1.0
    return float(str(told["verdict"]).strip().lower() == ("yes" if solved else "no"))


def _graded(task: Task, answer: str) -> float:
    """Return the score of an answer. Raises ValueError if its entry cannot be made again."""
    entry = make_plain("reasoning_gym", task.environment_config)
    if not entry.replayable:
        msg = f"the entries of {task.environment_config} differ between processes"
        raise ValueError(msg)
    entry.open(task.seed)
    return entry.step(answer).reward


def _opinion(spec: ScorerSpec, trajectory: Trajectory) -> ScorerResult:
    if spec.function is None and _waits(spec.name):
        return ScorerResult(Reward(spec.name, None, OPEN, spec.weight))
    try:
        with convert_errors(FailureCode.RAISED, "it raised"):
            found = read_result((spec.function or _scorer(spec.name))(trajectory))
        return result_of(spec, trajectory, found)
    except ProgramFailed:
        raise  # the scorer is stuck: the others cannot run
    except RollcallError as error:
        return ScorerResult(
            Reward(spec.name, None, clean_text(str(error), REASON_CHARS), spec.weight)
        )


def read_result(result: object) -> PerToken:
    """Convert a scorer's result into a PerToken. Raises any exception of its conversion."""
    if isinstance(result, PerToken):
        value, tokens, said = result
        return PerToken(float(value), tokens, clean_text(said, REASON_CHARS))
    if isinstance(result, Explained):
        return PerToken(float(result.value), {}, clean_text(result.reason, REASON_CHARS))
    return PerToken(float(result), {})  # type: ignore[arg-type]


def result_of(spec: ScorerSpec, trajectory: Trajectory, found: PerToken) -> ScorerResult:
    """Return the result of a scorer that returned; its value is None if it is not finite."""
    if not math.isfinite(found.value):
        return ScorerResult(Reward(spec.name, None, f"it gave {found.value}", spec.weight))
    try:
        with convert_errors(FailureCode.RAISED, "its token scores raised"):
            tokens = packed_scores(spec.name, found.tokens, trajectory) if found.tokens else ()
    except WorkFailed as error:
        return ScorerResult(
            Reward(spec.name, None, clean_text(str(error), REASON_CHARS), spec.weight)
        )
    return ScorerResult(Reward(spec.name, found.value, found.reason, spec.weight), tokens)


def _together(results: Iterable[ScorerResult]) -> tuple[TokenScores, ...]:
    return tuple(each for result in results for each in result.tokens)


@cache
def _waits(name: str) -> bool:
    """Return True if a scorer is an `async def`; an unknown one fails later, when it is called."""
    try:
        return inspect.iscoroutinefunction(_scorer(name))
    except WorkFailed:
        return False


@cache
def _takes_host(name: str) -> bool:
    with convert_errors(FailureCode.BAD_CONFIG, f"scorer {name!r} hides its parameters"):
        return "host" in inspect.signature(_scorer(name)).parameters


@cache
def _scorer(name: str) -> Callable[..., Any]:
    """Load a scorer, cached: finding a module takes as long as many scorers. Raises WorkFailed."""
    return load("scorer", name, SHIPPED)


def _total(rewards: Sequence[Reward]) -> tuple[float | None, str]:
    """Return the weighted sum, or None and the reason."""
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
    """Return the assistant's last message, from the last sequence that has one."""
    for sequence in reversed(trajectory.sequences or ()):
        for message in reversed(sequence.messages):
            if message.role == "assistant":
                return message.content
    msg = f"the assistant says nothing in rollout {trajectory.rollout_id!r}"
    raise ValueError(msg)
