"""The trainer on the in-memory log: a crash costs at most a step."""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rollcall.compose.conductor.in_memory import run_in_memory
from rollcall.compose.settings import Settings
from rollcall.compose.workers.engines import weights_engine
from rollcall.compose.workers.run_trainer import sole_trainer
from rollcall.consumers.log.memory_log import MemoryLog, MemoryPublisher
from rollcall.consumers.models import versions
from rollcall.schemas.codec import Codec, Registry
from rollcall.schemas.errors import Unavailable, Unfit
from rollcall.schemas.ids import draw_of
from rollcall.schemas.messages import (
    Claim,
    PolicyVersion,
    RolloutRequest,
    ScoredTrajectory,
    TrainStep,
)
from rollcall.schemas.packed import pack_ids, pack_logprobs
from rollcall.trainer.learner.step import Learner
from rollcall.trainer.rules.samples import versions_of
from tests.support.tiny_run import RECIPE, World


class Died(BaseException):
    """Where a test lets a trainer die; nothing may take it for an error and go on."""


class Leaving:
    """A registry that may be away; its ids are those of another."""

    away = False

    def __init__(self, inner: Registry) -> None:
        self.inner = inner

    def writer_id(self, topic: str, schema: str) -> int:
        return self.inner.writer_id(topic, schema)

    def schema_of(self, schema_id: int) -> str:
        if self.away:
            msg = "the registry does not answer"
            raise Unavailable(msg)
        return self.inner.schema_of(schema_id)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    return World(tmp_path)


def test_a_run_trains_its_steps_and_references_every_trajectory(world: World) -> None:
    world.train(world.trainer())

    steps = world.steps()
    assert [step.step for step in steps] == [1, 2, 3, 4]
    assert [version.version for version in world.versions()] == [0, 1, 2, 3, 4]
    assert [version.parent for version in world.versions()] == [-1, 0, 1, 2, 3]
    places = [(r.partition, r.offset) for step in steps for r in step.trajectories]
    assert len(places) == len(set(places)) == 4 * 8
    by_place = {
        (record.partition, record.offset): world.factory.codec.decode(
            record.value, ScoredTrajectory
        )
        for record in world.log.all(world.topics.scored)
    }
    for step in steps:
        for ref in step.trajectories:
            trajectory = by_place[ref.partition, ref.offset].trajectory
            assert trajectory.rollout_id == ref.rollout_id
            assert trajectory.request is not None
            assert trajectory.request.purpose == "train"


def test_a_registry_outage_during_training_is_waited_out(world: World) -> None:
    # Given a trainer that has not read a scored trajectory before, and a registry that leaves
    trainer = world.trainer()
    registry = Leaving(world.codec.registry)
    trainer.intake.codec = Codec(registry)
    for topic, kind in (
        (world.topics.versions, PolicyVersion),
        (world.topics.train_steps, TrainStep),
    ):
        trainer.intake.codec.prepare(topic, kind)
    registry.away = True
    for _ in range(50):
        for loop in world.loops:
            loop.turn(0.0)

    # When it reads them
    assert [trainer.turn(0.0) for _ in range(2)] == [0, 0]
    registry.away = False
    world.train(trainer)

    # Then none was lost
    assert [step.step for step in world.steps()] == [1, 2, 3, 4]


def test_the_starting_weights_are_evaluated_before_training(world: World) -> None:
    trainer = world.trainer()
    world.train(trainer)

    requests = world.read(world.topics.requests, RolloutRequest)
    assert trainer.evaluations.heldout is not None
    assert [version for version, _ in trainer.evaluations.heldout.curve()] == [0, 2, 4]
    purposes = Counter(request.purpose for request in requests)
    assert purposes["evaluate"] == 3 * 6
    for request in requests:
        if request.purpose == "evaluate":
            assert 5000 <= request.task.seed < 5006
            assert request.sampling.temperature == 0.0
        else:
            assert request.task.seed < 1000


def test_a_held_out_rollout_is_sampled_only_by_its_requested_version(
    tmp_path: Path,
) -> None:
    world = World(tmp_path, RECIPE.replace("steps = 4", "steps = 12"))
    trainer = world.trainer()
    world.train(trainer)

    asked = Counter[int]()
    for scored in world.read(world.topics.scored, ScoredTrajectory):
        trajectory = scored.trajectory
        if trajectory.request.purpose == "evaluate":
            [version] = versions_of(trajectory.sequences, 0)
            assert version == trajectory.request.policy_version
            asked[version] += 1
    assert asked == dict.fromkeys(range(0, 14, 2), 6)
    assert trainer.evaluations.heldout is not None
    assert [len(trainer.evaluations.heldout.counted(version)) for version in asked] == [6] * 7


def test_staleness_bounds_the_number_of_open_rollouts(world: World) -> None:
    trainer = world.trainer()
    world.train(trainer)

    for step in world.steps():
        assert step.metrics["staleness_max"] <= trainer.config.staleness.bound
    train = [r for r in world.read(world.topics.requests, RolloutRequest) if r.purpose == "train"]
    batch = 8
    assert len(train) <= (trainer.config.staleness.bound + 4) * batch


def test_no_rollout_is_sampled_from_weights_too_old_for_its_batch(
    world: World,
) -> None:
    # Given a run in which nothing came too late
    trainer = world.trainer()
    world.train(trainer)
    assert [step.metrics["dropped"] for step in world.steps()] == [0.0] * 4

    # Then of each group's batch, the oldest weights that will do are the least that it asks for
    for request in world.read(world.topics.requests, RolloutRequest):
        if request.purpose == "train":
            batch = draw_of(request.run_id, request.group_id) * 4 // 8
            assert request.min_policy_version == max(0, batch - trainer.config.staleness.bound)


def test_a_trainer_that_dies_between_steps_resumes_at_its_last_step(world: World) -> None:
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
def test_saved_but_unannounced_steps_are_announced_by_the_next_trainer(
    world: World, lost: str
) -> None:
    # Given a trainer that dies after its checkpoint, before an announcement
    first = world.trainer()
    world.train(first, steps=1)
    first.saver.publisher = Dying(world.log, getattr(world.topics, lost))
    with pytest.raises(Died):
        world.train(first, steps=2)

    # When another trainer takes over
    world.train(world.trainer())

    # Then no version and no step is missing, and none is there twice with other weights
    assert [step.step for step in world.steps()] == [1, 2, 3, 4]
    digests = {version.version: version.weights_digest for version in world.versions()}
    assert sorted(digests) == [0, 1, 2, 3, 4]
    assert len({(v.version, v.weights_digest) for v in world.versions()}) == 5


class Dying(MemoryPublisher):
    """A publisher that dies before it writes to one topic."""

    def __init__(self, log: MemoryLog, topic: str) -> None:
        super().__init__(log)
        self.topic = topic

    def send(self, topic: str, *arguments: Any, **named: Any) -> None:
        if topic == self.topic:
            raise Died
        super().send(topic, *arguments, **named)


def test_a_lost_checkpoint_abandons_its_version_and_never_reuses_its_number(
    world: World,
) -> None:
    # Given two announced steps, of which the second's checkpoint is gone
    world.train(world.trainer(), steps=2)
    checkpoint = world.folder.directory / "checkpoints" / "v00000002" / "manifest.json"
    checkpoint.unlink()

    # When another trainer resumes from the first
    trainer = world.trainer()
    world.train(trainer)

    # Then numbering continues above, and the abandoned branch is known
    versions = [version.version for version in world.versions()]
    assert versions[:3] == [0, 1, 2]
    assert versions[3] == 3
    assert next(v for v in world.versions() if v.version == 3).parent == 1
    assert trainer.saver.abandoned == ((2, 2),)


@pytest.mark.parametrize("damage", ["torn", "gone"])
def test_weights_damaged_by_a_power_cut_are_repaired_and_never_served(
    world: World, damage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(versions, "RETRY_S", 0.0)
    # Given announced weights whose file is damaged, what a crash in writing leaves, and a server
    # that has to read them
    world.train(world.trainer(), steps=2)
    weights = world.folder.directory / "weights"
    newest = sorted(weights.glob("*.safetensors"))[-1]
    whole = newest.read_bytes()
    if damage == "torn":
        newest.write_bytes(whole[:1000])
    else:
        newest.unlink()
    (weights / "v00000003-aaaa.safetensors.1234.tmp").write_bytes(b"x")
    engine = weights_engine(world.folder.policy_id, world.folder.policy, world.settings.models)
    server = world.serve_by(engine)
    for _ in range(100):
        server.turn(0.0)
    served = engine.version

    # When a trainer takes over
    trainer = world.trainer()

    # Then the file is restored, no temporary file is left, and all workers continue
    assert served == -1
    assert newest.read_bytes() == whole
    assert not list(weights.glob("*.tmp"))
    world.train(trainer)
    assert [step.step for step in world.steps()] == [1, 2, 3, 4]


def poisoned(record: ScoredTrajectory, number: int) -> Iterator[ScoredTrajectory]:
    """Untrainable records of the run, each a group of its own."""
    trajectory = record.trajectory
    assert trajectory.sequences
    assert trajectory.request is not None
    [one, *_] = trajectory.sequences
    tokens = len(one.loss_mask)
    changes: list[dict[str, Any]] = [
        {"sequences": (replace(one, token_ids=pack_ids([10**6] * tokens)),)},
        {"sequences": (replace(one, behaviour_logprobs=pack_logprobs([-1e30] * tokens)),)},
        {"sequences": None, "claim": Claim("file:///nowhere", "0" * 64, 1)},
    ]
    for at, change in enumerate(changes):
        name = f"bad-{number}-{at}"
        request = replace(trajectory.request, rollout_id=name, group_id=name, group_size=1)
        bad = replace(trajectory, rollout_id=name, request=request, **change)
        yield replace(record, trajectory=bad)
    lone = replace(trajectory.request, rollout_id=f"rich-{number}", group_id=f"rich-{number}")
    rich = replace(trajectory, rollout_id=lone.rollout_id, request=replace(lone, group_size=1))
    yield replace(record, trajectory=rich, total=1e160)
    other = replace(lone, run_id="another", rollout_id=f"other-{number}")
    claim = Claim("file:///nowhere", "0" * 64, 1)
    theirs = replace(
        trajectory, rollout_id=other.rollout_id, request=other, sequences=None, claim=claim
    )
    yield replace(record, trajectory=theirs)


def test_untrainable_scored_records_are_dropped_and_training_continues(world: World) -> None:
    # Given a step, then records of the run that no model could be trained on, and garbage
    first = world.trainer()
    world.train(first, steps=1)
    some = next(
        scored for scored in world.read(world.topics.scored, ScoredTrajectory)
        if scored.trajectory.request.purpose == "train"
    )  # fmt: skip
    bad = [each for number in range(6) for each in poisoned(some, number)]
    for each in bad:
        key = each.trajectory.rollout_id.encode()
        world.log.append(world.topics.scored, key, world.codec.encode(world.topics.scored, each))
    world.log.append(world.topics.scored, b"garbage", b"garbage")

    # When the trainer continues, and another after it
    world.train(first, steps=2)
    second = world.trainer()
    world.train(second)

    # Then each was refused for its reason and none was trained on
    counted = {reason: tally.count for reason, tally in second.buffer.drops().items()}
    wanted = {"vocabulary", "malformed", "claim_not_read", "unscored", "other_run"}
    assert {reason: counted[reason] for reason in wanted} == dict.fromkeys(wanted, 6)
    steps = world.steps()
    assert [step.step for step in steps] == [1, 2, 3, 4]
    assert sum(step.dropped.get("unreadable", 0) for step in steps) == 1
    trained = {ref.rollout_id for step in steps for ref in step.trajectories}
    assert not trained & {each.trajectory.rollout_id for each in bad}


def test_garbage_in_the_versions_topic_does_not_end_a_trainer(world: World) -> None:
    # Given garbage under the policy's key, and a version that leaves no number above it
    world.train(world.trainer(), steps=1)
    key = world.folder.policy_id.encode()
    version = world.versions()[-1]
    last = replace(version, version=2**31 - 1, run_id="another")
    for topic, value in [
        (world.topics.versions, b"garbage"),
        (world.topics.train_steps, b"garbage"),
        (world.topics.train_steps, world.codec.encode(world.topics.train_steps, version)),
    ]:
        world.log.append(topic, key, value)
    far = world.codec.encode(world.topics.versions, last)

    # When another trainer takes over
    trainer = world.trainer()
    world.log.append(world.topics.versions, key, far)
    again = world.trainer()

    # Then both continue the numbering
    assert (trainer.saver.highest, again.saver.highest) == (1, 1)


class Raising(Learner):
    """A learner that raises for some of its batches."""

    raises: Callable[[], bool]

    def prepare(self, samples: Any) -> Any:
        if self.raises():
            msg = "index out of range"
            raise IndexError(msg)
        return super().prepare(samples)


def test_a_rollout_sampled_otherwise_than_requested_is_not_trained(
    tmp_path: Path,
) -> None:
    recipe = RECIPE.replace("[task]", '[task]\nagent = "tests.support.cold_program:cold"', 1)
    world = World(tmp_path, recipe)
    trainer = world.trainer()

    for _ in range(300):
        for loop in world.loops:
            loop.turn(0.0)
        trainer.turn(0.0)

    drops = trainer.buffer.drops()
    assert drops["sampling_not_followed"].count > 0
    assert all(
        not sequence.samplings
        for sample in trainer.buffer.take(1, 0) or ()
        for sequence in sample.scored.trajectory.sequences or ()
    )


def test_an_uncomputable_batch_is_dropped_and_the_next_one_trained(world: World) -> None:
    trainer = world.trainer()
    world.train(trainer, steps=1)
    turns = iter([True, False, True])
    trainer.learner.__class__ = Raising
    trainer.learner.raises = lambda: next(turns, False)  # type: ignore[attr-defined]

    world.train(trainer)

    assert [step.step for step in world.steps()] == [1, 2, 3, 4]
    assert [version.version for version in world.versions()] == [0, 1, 2, 3, 4]
    assert sum(step.dropped.get("step_failed", 0) for step in world.steps()) == 2 * 8


def test_a_trainer_without_any_computable_batch_fails_and_meets_none_again(
    world: World,
) -> None:
    trainer = world.trainer()
    world.train(trainer, steps=1)
    trainer.learner.__class__ = Raising
    trainer.learner.raises = lambda: True  # type: ignore[attr-defined]

    with pytest.raises(Unfit, match=r"3 batches .*IndexError"):
        world.train(trainer)

    after = world.trainer()
    assert after.buffer.drops()["step_failed"].count == 3 * 8
    world.train(after)
    assert [step.step for step in world.steps()] == [1, 2, 3, 4]


def test_a_second_trainer_of_a_run_waits_for_the_first_to_end(tmp_path: Path) -> None:
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
