"""An agent in a process of its own, which knows only an endpoint, is trained on like any other."""

import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from rollcall.compose.runs.recipe import load_recipe
from rollcall.compose.runs.retraining import retrain_and_tell
from rollcall.schemas.messages import Trajectory
from tests.support.tiers import cases
from tests.support.tiny_run import RECIPE, World

AGENT = Path(__file__).parents[1] / "support" / "lake_agent.py"
HOSTED = f"""agent = "hosted"
agent_config = {{ agent = "python", function = "{AGENT}:play" }}
"""
HELD_OUT = range(1_000_000, 1_000_128)


def hosted(recipe: str) -> str:
    """The same task for the agent in its file."""
    recipe = recipe.replace('agent = "react"\n', "")
    return recipe.replace("[task]\n", f"[task]\n{HOSTED}")


def played(world: World, seeds: range) -> dict[int, Trajectory]:
    """One greedy rollout for each seed, of the policy as it begins."""
    world.trainer()
    assert [each.version for each in world.versions()] == [0]
    template = world.folder.recipe.template("lake", world.folder.policy_id)
    sampling = replace(template.sampling, temperature=0.0)
    for seed in seeds:
        task = replace(template.task, seed=seed)
        world.ask(replace(template, rollout_id=f"s{seed}", task=task, sampling=sampling))
    deadline = time.monotonic() + 120
    while len(ended := _asked_here(world)) < len(seeds):
        assert time.monotonic() < deadline, f"{len(ended)} have ended"
        for loop in world.loops:
            loop.turn(0.0)
    return {each.request.task.seed: each for each in ended}


def _asked_here(world: World) -> list[Trajectory]:
    """Without the rollouts that the trainer has asked for."""
    ended = world.read(world.topics.trajectories, Trajectory)
    return [each for each in ended if each.rollout_id.startswith("s")]


def what_was_learned_from(trajectory: Trajectory) -> tuple[object, ...]:
    assert trajectory.status == "finished", trajectory.reason
    (sequence,) = trajectory.sequences or ()
    rewards = [step.reward for step in trajectory.steps or () if step.session == "main"]
    return sequence.token_ids, sequence.loss_mask, sequence.messages, rewards


@pytest.mark.timeout(300)
@pytest.mark.parametrize("count", cases([16, len(HELD_OUT)]))
def test_hosted_agent_gives_the_same_tokens_and_rewards_as_native(
    tmp_path: Path, count: int
) -> None:
    seeds = HELD_OUT[:count]
    _, text = load_recipe("lake-any-start")
    text = text[: text.index("[evaluation]")]
    # What the trainer asks for, to learn from it, is played beside them: as little as it can be.
    least = "groups_per_step = 1\ngroup_size = 2"
    assert "groups_per_step = 8\ngroup_size = 8" in text
    text = text.replace("groups_per_step = 8\ngroup_size = 8", least)
    native = played(World(tmp_path / "native", text), seeds)
    world = World(tmp_path / "hosted", hosted(text))
    try:
        foreign = played(world, seeds)
    finally:
        world.close()

    assert native.keys() == foreign.keys() == set(seeds)
    for seed in seeds:
        assert what_was_learned_from(native[seed]) == what_was_learned_from(foreign[seed])


@pytest.mark.thorough
@pytest.mark.timeout(300)
def test_twenty_steps_on_hosted_rollouts_are_retrained_bit_identically(tmp_path: Path) -> None:
    recipe = hosted(RECIPE).replace("steps = 4", "steps = 20").replace("every = 2", "every = 20")
    world = World(tmp_path, recipe)
    try:
        world.train(world.trainer())
    finally:
        world.close()

    assert [step.step for step in world.steps()] == list(range(1, 21))
    threads = torch.get_num_threads()
    run = world.folder.trained()
    report = retrain_and_tell(world, run, (1, 20), version=None, threads=threads, tell=print)
    assert [step["identical"] for step in report["steps"]] == [True] * 20
