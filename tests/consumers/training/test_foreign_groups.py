"""Runs that train on recorded and on shared groups of other runs, each once, from the log."""

from collections import Counter
from pathlib import Path

import pytest
import torch

from rollcall.compose.cli.retrain import parse_steps
from rollcall.compose.runs.retraining import retrain_and_tell
from rollcall.consumers.audit.audit import audit
from rollcall.schemas.errors import Refused
from rollcall.schemas.messages import ScoredTrajectory, TrainStep
from rollcall.schemas.trajectory_refs import refs_of
from tests.support.tiny_run import RECIPE, World

OFF_POLICY = RECIPE.replace(
    "steps = 4\ngroups_per_step = 2", 'steps = 6\ngroups_per_step = 4\nloss = "m2po"'
)
EARLIER = RECIPE.replace("steps = 4", "steps = 2")
RECORDED = OFF_POLICY + '\n[learner.recorded]\nrun = "earlier"\nratio = 0.5\n'
SHARED = OFF_POLICY + "\n[learner.share]\nratio = 0.5\n"


def of_runs(world: World, step: TrainStep) -> Counter[str]:
    """The runs of a step's rollouts, in groups of four."""
    runs: Counter[str] = Counter()
    for ref in refs_of(step):
        record = world.log.all(ref.topic)
        [value] = [
            r.value for r in record if (r.partition, r.offset) == (ref.partition, ref.offset)
        ]
        request = world.codec.decode(value, ScoredTrajectory).trajectory.request
        assert request is not None
        runs[request.run_id] += 1
    return Counter({run: count // 4 for run, count in runs.items()})


def own_steps(world: World) -> list[TrainStep]:
    return [step for step in world.steps() if step.run_id == world.folder.run_id]


def retrained(world: World) -> list[int]:
    """The steps whose retrained bits differ."""
    last = len(own_steps(world))
    report = retrain_and_tell(
        world, world.folder.trained(), parse_steps(f"1..{last}"), version=None,
        threads=torch.get_num_threads(), tell=lambda line: None,
    )  # fmt: skip
    assert len(report["steps"]) == last
    return list(report["differing"])


@pytest.fixture
def earlier(tmp_path: Path) -> World:
    world = World(tmp_path, EARLIER, run_id="earlier")
    world.begin()
    world.train(world.trainer())
    return world


def test_half_of_each_batch_is_recorded_by_an_earlier_run(earlier: World, tmp_path: Path) -> None:
    world = World(tmp_path, RECORDED, run_id="later", beside=earlier)
    world.begin()

    world.train(world.trainer())

    steps = own_steps(world)
    assert [step.metrics.get("recorded", 0) for step in steps] == [8, 8, 8, 8, 0, 0]
    assert [of_runs(world, step)["earlier"] for step in steps] == [2, 2, 2, 2, 0, 0]
    assert [of_runs(world, step)["later"] for step in steps] == [2, 2, 2, 2, 4, 4]
    assert audit(world.factory).breaches == []
    assert max(Counter(r.rollout_id for s in steps for r in refs_of(s)).values()) == 1
    assert retrained(world) == []
    assert audit(world.factory).breaches == []


def test_a_restarted_trainer_continues_with_the_next_recorded_groups(
    earlier: World, tmp_path: Path
) -> None:
    text = RECORDED.replace("ratio = 0.5", "ratio = 0.5\npasses = 2")
    world = World(tmp_path, text, run_id="later", beside=earlier)
    world.begin()

    for step in range(1, 7):
        world.train(world.trainer(), steps=step)

    steps = own_steps(world)
    uses = Counter(ref.rollout_id for step in steps for ref in refs_of(step))
    assert [step.metrics["recorded"] for step in steps] == [8] * 6
    assert [step.metrics.get("replayed", 0) for step in steps] == [0, 0, 0, 0, 8, 8]
    assert Counter(uses.values()) == {1: 6 * 8 + 16, 2: 16}
    assert audit(world.factory).breaches == []
    assert retrained(world) == []


def test_a_run_without_recorded_groups_is_refused(earlier: World, tmp_path: Path) -> None:
    text = RECORDED.replace("ratio = 0.5", 'ratio = 0.5\noffsets = ["0:900-901"]')
    world = World(tmp_path, text, run_id="later", beside=earlier)
    world.begin()

    with pytest.raises(Refused, match="no whole group of run 'earlier'"):
        world.trainer()
    with pytest.raises(Refused, match="'nobody'"):
        World(tmp_path, RECORDED.replace('"earlier"', '"nobody"'), run_id="x", beside=earlier)


def test_shared_groups_of_another_run_are_trained_beside_own_ones(tmp_path: Path) -> None:
    giver = World(tmp_path, RECIPE.replace("steps = 4", "steps = 30"), run_id="giver")
    giver.begin()
    world = World(tmp_path, SHARED, run_id="taker", beside=giver)
    world.begin()
    theirs = giver.trainer()

    for step in range(1, 7):  # each step by another trainer
        ours = world.trainer()
        while ours.learner.steps_done < step:
            for loop in world.loops:
                loop.turn(0.0)
            theirs.turn(0.0)
            ours.turn(0.0)

    steps = own_steps(world)
    shared = [int(step.metrics.get("shared", 0)) for step in steps]
    assert sum(shared) > 0
    assert [of_runs(world, step)["giver"] for step in steps] == [count // 4 for count in shared]
    assert all(sum(of_runs(world, step).values()) == 4 for step in steps)
    assert max(Counter(r.rollout_id for s in steps for r in refs_of(s)).values()) == 1
    assert retrained(world) == []
    assert audit(world.factory).breaches == []
