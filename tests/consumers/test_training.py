"""The trainer on the in-memory log: it learns from the log, and a crash costs at most a step."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from compose import runs
from compose.memory_run import run_in_memory
from compose.recipe import parse_recipe
from compose.settings import Settings
from compose.workers import Workshop, sole_trainer, transformers_engine
from consumers.memory import MemoryLog, MemoryPublisher
from consumers.training import Trainer
from schemas.codec import Codec, LocalRegistry
from schemas.messages import PolicyVersion, RolloutRequest, ScoredTrajectory, TrainStep
from schemas.topics import Topics, wanted

RECIPE = """
name = "tiny"
[task]
environment = "gymnasium"
seeds = [0, 1000]
[task.environment_config]
id = "FrozenLake-v1"
observation = "s{observation}"
actions = ["L", "D", "R", "U"]
max_turns = 4
[limits]
max_turns = 4
[sampling]
max_tokens = 1
[policy]
tokens = "lake"
template = { kind = "words", bos = "<bos>", turn = "<a>" }
[policy.config]
model_type = "gpt2"
vocab_size = 32
n_positions = 32
n_embd = 16
n_layer = 1
n_head = 2
bos_token_id = 0
eos_token_id = 0
[learner]
steps = 4
groups_per_step = 2
group_size = 4
[evaluation]
seeds = [5000, 5006]
every = 2
"""


class Died(Exception):
    """Where a test lets a trainer die."""


class World:
    """One run on one in-memory log, whose trainer may be replaced."""

    def __init__(self, directory: Path) -> None:
        recipe = parse_recipe(RECIPE, "tiny")
        self.folder = runs.create(directory, recipe, RECIPE, seed=3)
        self.topics = Topics("m.")
        self.log = MemoryLog(wanted("m.", [self.folder.policy_id], partitions=2))
        self.settings = Settings()
        self.shop = Workshop(
            self.log, Codec(LocalRegistry()), self.topics, self.settings, watched=False
        )
        engine = transformers_engine(self.folder.policy_id, self.folder.policy, self.settings)
        self.loops = [
            self.shop.agents("agents"),
            self.shop.models("models", engine),
            self.shop.environments("environments"),
            self.shop.rewards("rewards", recipe.scorers, recipe.scoring_id),
        ]

    def trainer(self) -> Trainer:
        return self.shop.trainer("training", self.folder)

    def train(self, trainer: Trainer, steps: int | None = None) -> None:
        """Let everybody take turns until so many steps are done, or the run is."""
        for _ in range(20_000):
            if trainer.done() or (steps is not None and trainer.learner.steps_done >= steps):
                return
            for loop in self.loops:
                loop.turn(0.0)
            trainer.turn(0.0)
        pytest.fail(f"{trainer.learner.steps_done} steps, {trainer.running()} running")

    def read(self, topic: str, kind: type) -> list[Any]:
        return [self.shop.codec.decode(record.value, kind) for record in self.log.all(topic)]

    def steps(self) -> list[TrainStep]:
        return self.read(self.topics.train_steps, TrainStep)

    def versions(self) -> list[PolicyVersion]:
        return self.read(self.topics.versions, PolicyVersion)


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
