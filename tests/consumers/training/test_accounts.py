"""A trainer's accounts: no rollout twice, none forgotten, and no endless wait."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rollcall.compose.runs import run_folder
from rollcall.compose.runs.recipe import parse_recipe
from rollcall.consumers.log.memory_log import MemoryLog, MemoryPublisher
from rollcall.schemas import trajectory_refs
from rollcall.schemas.errors import DeliveryFailed, Refused
from rollcall.schemas.messages import PolicyVersion
from rollcall.trainer.checkpoints import checkpoint as checkpoints
from rollcall.trainer.checkpoints.manifest import MANIFEST
from tests.support.changed_config import changed
from tests.support.staged_run import CONFIG, SCORING, Stage
from tests.support.tiny_run import RECIPE


def held_out(stage: Stage, version: int) -> list[str]:
    group = f"run/heldout/{version}"
    return [r.rollout_id for r in stage.asked() if r.group_id == group]


def evaluate(stage: Stage, version: int, reward: float) -> None:
    for request in stage.in_the_air():
        if request.group_id == f"run/heldout/{version}":
            stage.end(request, reward=reward)
    stage.turn()


def test_rewritten_records_are_never_trained_again_even_after_a_restart(
    tmp_path: Path,
) -> None:
    stage = Stage(tmp_path)
    stage.train(2)

    for number in range(len(stage.written)):
        stage.again(number)
    stage.turn()
    stage.begin()
    stage.turn()
    stage.drain()

    assert [step.step for step in stage.steps()] == [1, 2, 3, 4]
    assert stage.trainer.buffer.drops()["duplicate"].count > 0


def test_failed_members_of_trained_groups_are_not_requested_again(tmp_path: Path) -> None:
    config = changed(CONFIG, missing="train_partial", steps=20, group_size=4)
    stage = Stage(tmp_path, config)

    for _ in range(200):
        air = stage.in_the_air()
        for number, request in enumerate(air):
            stage.end(request, "failed" if number % 4 == 3 else "finished")
        stage.turn()

    assert stage.trainer.done()
    assert len(stage.asked()) <= (config.staleness.bound + 20) * 2 * 4


def test_a_restart_needs_only_requests_since_the_oldest_unfinished_draw(tmp_path: Path) -> None:
    # Given a run of which retention has taken all requests of draws that have ended
    stage = Stage(tmp_path)
    stage.train(3)
    left = {request.group_id for request in stage.in_the_air()}
    records = stage.log.all(stage.topics.requests)
    asked = zip(records, stage.asked(), strict=True)
    for record, request in asked:
        if request.group_id not in left:
            stage.log.delete_before(record.topic, record.partition, record.offset + 1)
    before = {request.rollout_id for request in stage.asked()}

    # When another trainer takes over
    stage.begin()
    assert {request.rollout_id for request in stage.asked()} == before
    stage.turn()

    # Then it knows the open rollouts, and requests none again
    assert stage.trainer.running() == len(stage.in_the_air())
    stage.drain()


def test_a_run_without_checkpoints_requests_no_rollout_twice(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    for _ in range(3):
        stage.turn()
    asked = len(stage.asked())
    for path in checkpoints.kept(tmp_path / "checkpoints").values():
        (path / MANIFEST).unlink()

    stage.begin()
    stage.begin()

    assert (stage.trainer.running(), len(stage.asked())) == (asked, asked)


# Never waiting for ever


def test_a_recipe_that_admits_no_group_is_refused_before_its_folder_exists(
    tmp_path: Path,
) -> None:
    recipe = parse_recipe(f"max_running = 3\n{RECIPE}", "tiny")

    with pytest.raises(Refused, match=r"max_running is 3, .* group_size 4"):
        run_folder.create(tmp_path, recipe, RECIPE, seed=1)

    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("capacity", [2, 64])
def test_a_goal_met_and_then_missed_loses_no_batch(tmp_path: Path, capacity: int) -> None:
    # Given that version 2 reached the goal while training went on, with batches waiting
    config = changed(CONFIG, steps=6, capacity_groups=capacity)
    stage = Stage(tmp_path, config, seeds=(500, 502), goal=0.9)
    stage.train(3)
    for request in stage.in_the_air():
        if request.purpose == "train":
            stage.end(request)
    evaluate(stage, 2, reward=1.0)
    for _ in range(5):
        stage.turn()
    newest = stage.trainer.learner.version
    assert held_out(stage, newest)

    # When the newest version misses it
    evaluate(stage, newest, reward=0.0)

    # Then training continues with every waiting batch
    for _ in range(100):
        for request in stage.in_the_air():
            stage.end(request, reward=None if request.purpose == "train" else 0.0)
        stage.turn()
    assert [step.step for step in stage.steps()] == [1, 2, 3, 4, 5, 6]
    assert stage.trainer.buffer.used == sum(len(step.trajectories) for step in stage.steps())


def test_an_older_version_reaching_the_goal_late_ends_nothing(
    tmp_path: Path,
) -> None:
    stage = Stage(tmp_path, changed(CONFIG, steps=6), seeds=(500, 502), goal=0.9)
    stage.train(4)
    evaluate(stage, 4, reward=0.0)
    done = stage.trainer.learner.steps_done

    evaluate(stage, 2, reward=1.0)

    assert not stage.trainer.done()
    stage.train(done + 1)


def test_an_unreadable_member_ends_its_group_if_every_group_is_needed(
    tmp_path: Path,
) -> None:
    stage = Stage(tmp_path, changed(CONFIG, max_staleness=0))
    stage.turn()
    torn, *others = stage.in_the_air()

    stage.end(torn, "torn")
    for request in others:
        stage.end(request)
    stage.turn()

    assert stage.trainer.buffer.drops()["unreadable"].count == 1
    assert stage.trainer.buffer.drops()["incomplete"].count == 1
    stage.drain()


def test_a_torn_record_of_another_scoring_or_run_is_ignored(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    stage.turn()
    running = stage.trainer.running()
    request = stage.in_the_air()[0]
    for key, name in [
        (request.group_id, f"of another than {SCORING}"),
        ("other/0", "an id"),
        ("run/heldout/7", "an id"),
        ("run/999", "an id"),
    ]:
        headers = [("ce_id", name.encode())]
        stage.log.append(stage.topics.scored, key.encode(), b"torn", headers=headers)

    stage.turn()

    assert stage.trainer.running() == running
    stage.drain()


def test_garbage_ends_no_rollout_while_others_are_expected(tmp_path: Path) -> None:
    stage = Stage(tmp_path, changed(CONFIG, max_staleness=0))
    stage.turn()
    stage.log.append(stage.topics.scored, b"x", b"garbage")
    for request in stage.in_the_air()[:2]:
        stage.end(request)

    for _ in range(5):
        stage.turn()

    assert stage.trainer.running() == 2
    stage.drain()


def test_a_torn_evaluation_result_is_not_waited_for(tmp_path: Path) -> None:
    stage = Stage(tmp_path, seeds=(500, 502))
    first, second = stage.in_the_air()

    stage.end(first, "torn")
    stage.end(second, reward=1.0)
    stage.turn()

    assert stage.trainer.evaluations.heldout is not None
    assert stage.trainer.evaluations.heldout.curve() == [(0, 1.0)]
    stage.drain()


@pytest.mark.parametrize("purpose", ["train", "evaluate"])
def test_a_rollout_refused_without_its_request_is_not_waited_for(
    tmp_path: Path, purpose: str
) -> None:
    """For example because its request killed workers, was skipped, or was too large."""
    config = changed(CONFIG, max_staleness=0)
    stage = Stage(tmp_path, config, seeds=(500, 502) if purpose == "evaluate" else (0, 0))
    stage.turn()
    refused = next(request for request in stage.in_the_air() if request.purpose == purpose)

    stage.end(refused, "request_gone")
    stage.turn()
    stage.drain()

    assert stage.trainer.done()


def test_a_repeated_request_ends_no_rollout_of_the_run(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    stage.turn()
    running = stage.trainer.running()

    for request in list(stage.in_the_air()):
        stage.end(request, "repeated")
        stage.ended.remove(request.rollout_id)
    stage.turn()

    assert stage.trainer.running() == running
    stage.drain()


def test_partitions_added_during_training_are_read(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    stage.train(1)

    stage.log.create(stage.topics.scored, 5)
    stage.log.create(stage.topics.requests, 5)
    stage.drain()

    assert any(ref.partition > 1 for step in stage.steps() for ref in step.trajectories)
    stage.begin()
    assert stage.trainer.done()


@pytest.mark.parametrize("steps", [0, 4])
def test_an_evaluation_with_an_unnamed_last_result_is_not_waited_for(
    tmp_path: Path, steps: int
) -> None:
    stage = Stage(tmp_path, seeds=(500, 502))
    stage.train(steps)
    nameless = held_out(stage, steps)[0]

    for request in stage.in_the_air():
        stage.end(request, "nameless" if request.rollout_id == nameless else "finished")
    for _ in range(3):
        stage.turn()

    assert stage.trainer.evaluations.heldout is not None
    assert stage.trainer.evaluations.heldout.complete(steps)
    stage.drain()


@pytest.mark.parametrize("number", [90, 2**31 - 1])
def test_a_version_hidden_by_a_foreign_one_is_announced_again(tmp_path: Path, number: int) -> None:
    stage = Stage(tmp_path)
    stage.train(1)
    topic = stage.topics.versions
    ours = stage.log.all(topic)[-1]
    version = stage.codec.decode(ours.value, PolicyVersion)
    foreign = replace(version, version=number, run_id="another")
    stage.log.append(topic, ours.key, stage.codec.encode(topic, foreign))

    stage.begin()
    stage.begin()

    assert stage.log.all(topic)[-1].value == ours.value
    assert len(stage.log.all(topic)) == 4
    stage.drain()


# One step at a time


def test_no_step_begins_before_all_records_are_acked(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    stage.train(1)
    publisher = stage.trainer.publisher
    assert isinstance(publisher, MemoryPublisher)
    for request in stage.in_the_air():
        stage.end(request)

    publisher.hold_acks = True
    stage.turn()
    done = stage.trainer.learner.steps_done
    for _ in range(5):
        stage.turn()
        for request in stage.in_the_air():
            stage.end(request)
    waited = stage.trainer.learner.steps_done
    publisher.hold_acks = False
    stage.drain()

    assert waited == done
    assert [step.step for step in stage.steps()] == [1, 2, 3, 4]


def test_a_trainer_without_acks_for_its_last_records_fails(
    tmp_path: Path,
) -> None:
    stage = Stage(tmp_path)
    stage.drain()
    publisher = stage.trainer.publisher
    assert isinstance(publisher, MemoryPublisher)
    publisher.hold_acks = True
    publisher.send(stage.topics.train_steps, "k", b"v")

    with pytest.raises(DeliveryFailed, match="its next start repeats them"):
        stage.trainer.go_on(lambda: True)


class Died(Exception):
    """Where a test lets a trainer die."""


class Dying(MemoryPublisher):
    """A publisher that dies before it writes a record of one key."""

    def __init__(self, log: MemoryLog, key: str) -> None:
        super().__init__(log)
        self.key = key

    def send(self, topic: str, key: Any, value: bytes | None, **named: Any) -> None:
        if key == self.key:
            raise Died
        super().send(topic, key, value, **named)


def test_a_restart_during_an_evaluation_asks_only_for_the_missing_rollouts(tmp_path: Path) -> None:
    # Given a trainer that died while it asked for an evaluation
    stage = Stage(tmp_path, seeds=(500, 504))
    stage.train(1)
    stage.trainer.admission.submitter.out = Dying(stage.log, "run/heldout/2/502")
    with pytest.raises(Died):
        stage.train(2)
    assert len(held_out(stage, 2)) == 2

    # When others begin again
    for _ in range(3):
        stage.begin()

    # Then the others are asked for, once
    assert len(held_out(stage, 2)) == 4
    assert len(set(held_out(stage, 2))) == 4
    stage.drain()


def test_a_step_with_many_trajectories_references_them_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trajectory_refs, "PLAIN", 3)
    stage = Stage(tmp_path)

    stage.drain()

    assert {step.trajectories for step in stage.steps()} == {()}
    assert [len(trajectory_refs.refs_of(step)) for step in stage.steps()] == [4, 4, 4, 4]
