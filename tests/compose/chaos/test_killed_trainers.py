"""A run with trainers killed at any point has the same bits as an undisturbed run."""

import json
from collections.abc import Callable
from dataclasses import replace
from importlib.resources import files
from pathlib import Path

import pytest
import torch

from rollcall.compose.chaos.faults import KILL, LIVES_S
from rollcall.compose.chaos.plan import RECIPES, ChaosPlan
from rollcall.compose.chaos.retraining_figures import figures_of_run
from rollcall.compose.chaos.training_figures import TrainingFigures
from rollcall.compose.runs.recipe import parse_recipe
from rollcall.schemas.errors import Refused
from rollcall.trainer.checkpoints import checkpoint as checkpoints
from tests.support.chaos_command import chaos
from tests.support.tiny_run import RECIPE, World

ASYNC = RECIPE.replace("group_size = 4\n", 'group_size = 4\nsave = "async"\n').replace(
    "[policy]\n", '[policy]\npublish = "bfloat16"\nweights = "delta"\n'
)


@pytest.fixture
def world(tmp_path: Path) -> World:
    """Three steps, each of a trainer of its own; kept are the checkpoints of 0 to 3."""
    world = World(tmp_path, ASYNC)
    for steps in (1, 2, 3):
        trainer = world.trainer()
        world.train(trainer, steps=steps)
        trainer.saver.save_trained(wait=True)
    return world


def judged(world: World) -> TrainingFigures:
    return figures_of_run(world.factory, world.folder.trained(), torch.get_num_threads())


def cut(world: World) -> None:
    (file,) = (world.folder.run().checkpoints / "v00000003").glob("optimiser-*")
    file.write_bytes(file.read_bytes()[:-1])


def takes_other_weights(world: World) -> None:
    root = world.folder.run().checkpoints
    older = checkpoints.load(root / "v00000002").state
    found = checkpoints.load(root / "v00000003")
    checkpoints.save(root, replace(found, state=replace(found.state, weights=older.weights)))


def goes_on_from_other_weights(world: World) -> None:
    """Train on after loading weights that were never announced."""
    takes_other_weights(world)
    world.train(world.trainer(), steps=4)


def test_training_by_many_processes_matches_training_by_one(world: World) -> None:
    assert judged(world) == TrainingFigures(3, 0, checkpoints=4, trained_again=3)
    assert judged(world).ok


@pytest.mark.parametrize(
    ("harm", "found"),
    [
        (cut, {"damaged": 1}),
        (takes_other_weights, {"wrong_digest": 1}),
        (goes_on_from_other_weights, {"steps": 4, "trained_again": 4, "differing": 1}),
    ],
)
def test_any_difference_from_the_announced_versions_is_not_ok(
    world: World, harm: Callable[[World], None], found: dict[str, int]
) -> None:
    harm(world)
    figures = judged(world)

    assert not figures.ok
    assert {name: getattr(figures, name) for name in found} == found


def test_run_without_steps_has_empty_training_figures(tmp_path: Path) -> None:
    figures = judged(World(tmp_path))

    assert figures == TrainingFigures()
    assert figures.ok


def test_trainer_is_killed_at_any_time_and_others_after_progress() -> None:
    faults = ChaosPlan(3, ("agents", "training"), kills=200).faults()
    lives = {role: [f.after_s for f in faults if f.role == role] for role in ("agents", "training")}

    assert {fault.kind for fault in faults} == {KILL}
    assert set(lives["agents"]) == {0.0}
    assert len(set(lives["training"])) == len(lives["training"])
    assert 0 < min(lives["training"]) < max(lives["training"]) < LIVES_S["training"]


def test_recipes_are_shipped_or_files_and_need_a_training_victim() -> None:
    for name in RECIPES:
        text = (files("rollcall.compose.chaos") / f"{name}.toml").read_text()
        assert parse_recipe(text, name).name.startswith("chaos")
    with pytest.raises(Refused, match="unknown recipe 'training-asinc'; did you mean"):
        ChaosPlan(3, ("training",), kills=1, recipe="training-asinc")
    with pytest.raises(Refused, match="name training in --kill"):
        ChaosPlan(3, ("agents",), kills=1, recipe="training-async")


@pytest.mark.thorough
@pytest.mark.broker
@pytest.mark.timeout(300)
def test_killed_trainer_learns_the_same_as_an_undisturbed_one(
    tmp_path: Path,
) -> None:
    figures = tmp_path / "figures.json"
    with chaos(
        "--kills", "3", "--seed", "14", "--json", str(figures), "--rollouts", "20",
        "--kill", "training", "--recipe", "training-async",
        cwd=tmp_path,
    ) as run:  # fmt: skip
        said, complained = run.communicate(timeout=280)

    assert run.returncode == 0, said + complained
    found = json.loads(figures.read_text())
    assert found["faults_by_kind"] == {"kill training": 3}
    training = found["training"]
    assert training["steps"] == training["trained_again"] > 1
    assert training["differing"] == training["wrong_digest"] == training["damaged"] == 0
