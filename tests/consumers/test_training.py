"""The trainer on the in-memory log: it learns from the log, and a crash costs at most a step."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from compose.memory_run import run_in_memory
from compose.settings import Settings
from compose.workers import sole_trainer
from consumers.memory import MemoryLog, MemoryPublisher
from schemas.messages import RolloutRequest, ScoredTrajectory
from tests.consumers.tiny import RECIPE, World


class Died(Exception):
    """Where a test lets a trainer die."""


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    return World(tmp_path)


def test_a_run_trains_its_steps_and_names_every_trajectory(world: World) -> None:
    world.train(world.trainer())

    steps = world.steps()
    assert [step.step for step in steps] == [1, 2, 3, 4]
    assert [version.version for version in world.versions()] == [0, 1, 2, 3, 4]
    assert [version.parent for version in world.versions()] == [-1, 0, 1, 2, 3]
    places = [(r.partition, r.offset) for step in steps for r in step.trajectories]
    assert len(places) == len(set(places)) == 4 * 8
    by_place = {
        (record.partition, record.offset): world.shop.codec.decode(record.value, ScoredTrajectory)
        for record in world.log.all(world.topics.scored)
    }
    for step in steps:
        for ref in step.trajectories:
            trajectory = by_place[ref.partition, ref.offset].trajectory
            assert trajectory.rollout_id == ref.rollout_id
            assert trajectory.request is not None
            assert trajectory.request.purpose == "train"


def test_the_starting_weights_are_evaluated_before_anything_is_trained(world: World) -> None:
    trainer = world.trainer()
    world.train(trainer)

    requests = world.read(world.topics.requests, RolloutRequest)
    assert trainer.heldout is not None
    assert [version for version, _ in trainer.heldout.curve()] == [0, 2, 4]
    purposes = Counter(request.purpose for request in requests)
    assert purposes["evaluate"] == 3 * 6
    for request in requests:
        if request.purpose == "evaluate":
            assert 5000 <= request.task.seed < 5006
            assert request.sampling.temperature == 0.0
        else:
            assert request.task.seed < 1000


def test_no_more_rollouts_are_in_the_air_than_staleness_allows(world: World) -> None:
    trainer = world.trainer()
    world.train(trainer)

    for step in world.steps():
        assert step.metrics["staleness_max"] <= trainer.config.max_staleness
    train = [r for r in world.read(world.topics.requests, RolloutRequest) if r.purpose == "train"]
    batch = 8
    assert len(train) <= (trainer.config.max_staleness + 4) * batch


def test_a_trainer_that_dies_between_steps_goes_on_where_it_was(world: World) -> None:
    world.train(world.trainer(), steps=2)

    world.train(world.trainer())

    assert [step.step for step in world.steps()] == [1, 2, 3, 4]
    places = [(r.partition, r.offset) for step in world.steps() for r in step.trajectories]
    assert len(places) == len(set(places))
    ids = Counter(
        r.rollout_id for r in world.read(world.topics.requests, RolloutRequest)
        if r.purpose == "train"
    )  # fmt: skip
    assert set(ids.values()) == {1}


@pytest.mark.parametrize("lost", ["versions", "train_steps"])
def test_what_was_saved_and_not_announced_is_announced_by_the_next(world: World, lost: str) -> None:
    # Given a trainer that dies after its checkpoint, before an announcement
    first = world.trainer()
    world.train(first, steps=1)
    first.publisher = Dying(world.log, getattr(world.topics, lost))
    with pytest.raises(Died):
        world.train(first, steps=2)

    # When another goes on
    world.train(world.trainer())

    # Then no version and no step is missing, and none is there twice with other weights
    assert [step.step for step in world.steps()] == [1, 2, 3, 4]
    digests = {version.version: version.weights_digest for version in world.versions()}
    assert sorted(digests) == [0, 1, 2, 3, 4]
    assert len({(v.version, v.weights_digest) for v in world.versions()}) == 5


class Dying(MemoryPublisher):
    """A publisher whose process dies before it writes to one topic."""

    def __init__(self, log: MemoryLog, topic: str) -> None:
        super().__init__(log)
        self.topic = topic

    def send(self, topic: str, *arguments: Any, **named: Any) -> None:
        if topic == self.topic:
            raise Died
        super().send(topic, *arguments, **named)


def test_a_lost_checkpoint_abandons_its_version_and_never_uses_its_number_again(
    world: World,
) -> None:
    # Given two announced steps, of which the second's checkpoint is gone
    world.train(world.trainer(), steps=2)
    checkpoint = world.folder.directory / "checkpoints" / "v00000002" / "manifest.json"
    checkpoint.unlink()

    # When another trainer goes on from the first
    trainer = world.trainer()
    world.train(trainer)

    # Then numbering goes on above, and the abandoned branch is known
    versions = [version.version for version in world.versions()]
    assert versions[:3] == [0, 1, 2]
    assert versions[3] == 3
    assert next(v for v in world.versions() if v.version == 3).parent == 1
    assert trainer.abandoned == ((2, 2),)


def test_a_second_trainer_of_a_run_stands_by_until_the_first_is_gone(tmp_path: Path) -> None:
    asked = iter([False, False, True])
    with (
        sole_trainer(tmp_path, lambda: False) as first,
        sole_trainer(tmp_path, lambda: next(asked)) as second,
    ):
        assert (first, second) == (True, False)

    with sole_trainer(tmp_path, lambda: False) as again:
        assert again


def test_the_shipped_command_runs_a_recipe_in_memory(tmp_path: Path) -> None:
    (tmp_path / "tiny.toml").write_text(RECIPE)

    found = run_in_memory(str(tmp_path / "tiny.toml"), Settings(), seed=1, summary=None)

    assert found["steps"] == 4
    assert 0.0 <= found["success_after"] <= 1.0
