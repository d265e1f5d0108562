"""Invalid answers, rewards and gradients in a real run: each costs only its own member."""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rollcall import Costs, Tokens
from rollcall.compose.workers.served_policy import run_engine
from rollcall.inference.engine import EngineAnswer
from rollcall.schemas.errors import Unfit
from rollcall.schemas.ids import digest
from rollcall.schemas.messages import ModelAnswered, ScoredTrajectory, Trajectory
from rollcall.schemas.packed import ids_of, logprobs_of, pack_ids, pack_logprobs
from tests.support.tiers import cases
from tests.support.tiny_run import RECIPE, World

SOME = 5
"""One rollout of so many is bad."""
PARTIAL = RECIPE.replace("[learner]", '[learner]\nmissing = "train_partial"')

ONE_TURN = PARTIAL.replace("max_turns = 4", "max_turns = 1")
"""What follows a token that there is not would be refused by the engine itself."""

Bend = Callable[[ModelAnswered], ModelAnswered]


def bad(rollout_id: str) -> bool:
    return digest(rollout_id)[0] % SOME == 0


class Bent:
    """An engine with some answers altered on their way out."""

    def __init__(self, engine: Any, bend: Bend) -> None:
        self._engine, self._bend = engine, bend

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def step(self) -> list[EngineAnswer]:
        return [
            replace(each, body=self._bend(each.body))
            if bad(each.call.rollout_id) and isinstance(each.body, ModelAnswered)
            else each
            for each in self._engine.step()
        ]


def last_logprob(value: float) -> Bend:
    def bend(answer: ModelAnswered) -> ModelAnswered:
        values = logprobs_of(answer.logprobs).copy()
        values[-1] = value
        return replace(answer, logprobs=pack_logprobs(values))

    return bend


def last_token(value: int) -> Bend:
    def bend(answer: ModelAnswered) -> ModelAnswered:
        return replace(answer, token_ids=pack_ids([*ids_of(answer.token_ids)[:-1], value]))

    return bend


def without_ids(answer: ModelAnswered) -> ModelAnswered:
    return replace(answer, token_ids=b"", logprobs=b"", versions=b"", untrainable="no_token_ids")


def endless(answer: ModelAnswered) -> ModelAnswered:
    """More tokens than the model has positions."""
    many = 100
    return replace(
        answer,
        token_ids=pack_ids([1] * many),
        logprobs=pack_logprobs([-1.0] * many),
        versions=pack_ids([int(ids_of(answer.versions)[-1])] * many),
    )


BENDS: Mapping[str, tuple[Bend, str]] = {
    "nan": (last_logprob(np.nan), "malformed"),
    "minus infinity": (last_logprob(-np.inf), "malformed"),
    "above zero": (last_logprob(0.5), "malformed"),
    "beyond the vocabulary": (last_token(32), "vocabulary"),
    "below it": (last_token(-1), "vocabulary"),
    "at the end of an int": (last_token(2**31 - 1), "vocabulary"),
    "beyond the context": (endless, "too_long"),
    "no ids": (without_ids, "no_token_ids"),
}


def trained(world: World) -> list[str]:
    """Train to the end; return the trained rollouts."""
    trainer = world.trainer()
    world.train(trainer)
    assert trainer.done()
    steps = world.steps()
    assert [step.step for step in steps] == [1, 2, 3, 4]
    assert all(np.isfinite(step.metrics["grad_norm"]) for step in steps)
    assert not any(step.metrics["skipped"] for step in steps)
    return [ref.rollout_id for step in steps for ref in step.trajectories]


@pytest.mark.parametrize("name", cases(BENDS, 3))
def test_an_untrainable_answer_costs_its_member_and_is_counted(tmp_path: Path, name: str) -> None:
    bend, reason = BENDS[name]
    world = World(tmp_path, ONE_TURN)
    world.serve_by(Bent(run_engine(world.folder, world.settings), bend))  # type: ignore[arg-type]

    used = trained(world)

    assert used
    assert not any(map(bad, used))
    dropped = {r: n for step in world.steps() for r, n in step.dropped.items()}
    assert dropped.get(reason), dropped


ABSURD = (float("nan"), float("inf"), float("-inf"), 1e300, -1e300, 1e10)
_numbers = count()


def absurd(trajectory: Trajectory) -> float:
    """A scorer with invalid rewards for some rollouts."""
    if bad(trajectory.rollout_id):
        return ABSURD[next(_numbers) % len(ABSURD)]
    return float(digest(trajectory.rollout_id)[1] % 2)


def raising(trajectory: Trajectory) -> Any:
    if bad(trajectory.rollout_id):
        msg = "no idea"
        raise ArithmeticError(msg)
    return 1.0


@pytest.mark.parametrize("scorer", [absurd, raising], ids=lambda each: each.__name__)
def test_an_unusable_reward_costs_its_member_and_is_counted(
    tmp_path: Path, scorer: Callable[[Trajectory], float]
) -> None:
    text = f'scorers = ["{__name__}:{scorer.__name__}"]\n{PARTIAL.lstrip()}'
    world = World(tmp_path, text)

    used = trained(world)

    assert used
    assert not any(map(bad, used))
    assert sum(step.dropped.get("unscored", 0) for step in world.steps())
    assert all(_said(each) for each in world.read(world.topics.scored, ScoredTrajectory))


def _said(scored: ScoredTrajectory) -> bool:
    """If an unusable record gives its reason, or has a usable total."""
    return scored.total is not None or bool(scored.reason)


def nowhere(tokens: Tokens) -> Costs:
    """A loss with a gradient that is not finite."""
    cost_BT = tokens.lp_BT * torch.tensor(float("nan"))
    return Costs(cost_BT, tokens.lp_BT.exp(), torch.zeros_like(tokens.lp_BT, dtype=torch.bool))


def test_three_steps_without_a_finite_gradient_end_the_trainer(
    tmp_path: Path,
) -> None:
    world = World(tmp_path, RECIPE.replace("[learner]", f'[learner]\nloss = "{__name__}:nowhere"'))
    trainer = world.trainer()
    before = trainer.learner.tensors()

    with pytest.raises(Unfit) as ended:
        world.train(trainer)

    said = str(ended.value)
    assert "3 steps in a row had no finite loss and gradient" in said
    assert "\n" not in said
    named = re.search(r"the last batch was m\.trajectories\.scored ((\d+@\d+(-\d+)?(, )?)+)$", said)
    assert named, said
    taken = {(ref.partition, ref.offset) for step in world.steps() for ref in step.trajectories}
    batch = set(places(named[1]))
    assert len(batch) == 8
    assert not batch & taken
    assert trainer.learner.tensors() == before
    assert len({version.weights_digest for version in world.versions()}) == 1
    assert [step.metrics["skipped"] for step in world.steps()] == [1, 1]


def places(text: str) -> Iterator[tuple[int, int]]:
    """Every place of `0@3-5, 1@2`."""
    for each in text.split(", "):
        partition, _, offsets = each.partition("@")
        first, _, last = offsets.partition("-")
        yield from ((int(partition), at) for at in range(int(first), int(last or first) + 1))
