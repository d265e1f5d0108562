"""Asynchronous saving during training: no step is announced too early, or lost."""

import errno
import shutil
from collections import namedtuple
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from structlog.testing import capture_logs

from rollcall.compose.cli.retrain import parse_steps
from rollcall.compose.runs.retraining import retrain_and_tell
from rollcall.consumers.log.memory_log import MemoryPublisher
from rollcall.consumers.loop.inline_executor import InlineExecutor
from rollcall.consumers.training.disk_room import disk_full
from rollcall.consumers.training.training_run import TrainingRun
from rollcall.producers.admission import AdmissionRule
from rollcall.schemas import atomic_files
from rollcall.schemas.errors import DiskFull, Refused, Unavailable
from rollcall.schemas.messages import PolicyVersion
from rollcall.schemas.store_urls import local_path
from rollcall.schemas.weights import RawTensor
from rollcall.trainer.checkpoints import checkpoint as checkpoints
from rollcall.trainer.checkpoints import shards
from rollcall.trainer.checkpoints.rank_files import PublishedFile
from rollcall.trainer.checkpoints.shards import digests_of, parts_of
from rollcall.trainer.config.learner_config import LearnerConfig
from rollcall.trainer.weights import publication
from rollcall.trainer.weights.publication import Publication, Publishing
from tests.support.changed_config import changed
from tests.support.later_executor import Died, LaterExecutor
from tests.support.staged_run import CONFIG, Counting, Stage
from tests.support.tiers import cases
from tests.support.tiny_run import RECIPE, World

LATER = changed(CONFIG, save="async")
EARLY = changed(LATER, announce="early")
Usage = namedtuple("Usage", "total used free")


def announced(stage: Stage) -> list[int]:
    records = stage.log.all(stage.topics.versions)
    return [stage.codec.decode(record.value, PolicyVersion).version for record in records]


def durable(stage: Stage) -> int:
    found = checkpoints.load_latest(stage.directory / "checkpoints").checkpoint
    return found.version if found else -1


def later(tmp_path: Path, config: LearnerConfig = LATER) -> tuple[Stage, LaterExecutor]:
    executor = LaterExecutor()
    return Stage(tmp_path, config, executor=lambda: executor), executor


def batch(stage: Stage) -> None:
    """End all open rollouts and take a turn."""
    for request in stage.in_the_air():
        stage.end(request)
    stage.turn()


def test_a_version_is_announced_only_once_its_checkpoint_is_durable(
    tmp_path: Path,
) -> None:
    stage, executor = later(tmp_path)
    while stage.trainer.learner.steps_done < 1:
        batch(stage)

    assert (announced(stage), durable(stage), stage.steps()) == ([0], 0, [])
    executor.run_all()
    assert (announced(stage), durable(stage)) == ([0, 1], 1)
    assert [step.step for step in stage.steps()] == [1]
    stage.drain()
    assert announced(stage) == [0, 1, 2, 3, 4]


def test_the_next_step_is_taken_during_a_save_and_saved_afterwards(tmp_path: Path) -> None:
    stage, executor = later(tmp_path)
    while stage.trainer.learner.steps_done < 2:
        batch(stage)

    # The second was submitted after the first was saved, and holds its own state.
    assert len(executor.submitted) == 3
    assert [future.done() for future in executor.submitted] == [True, True, False]
    assert (announced(stage), durable(stage)) == ([0, 1], 1)
    held = checkpoints.load_latest(tmp_path / "checkpoints").checkpoint
    assert held is not None
    assert (held.state.step, held.state.weights["w"].data, held.used) == (1, b"\1", 4)
    stage.drain()


def test_an_early_announcement_follows_the_weights_and_precedes_the_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage, executor = later(tmp_path, EARLY)
    while stage.trainer.learner.steps_done < 1:
        batch(stage)

    def dies(*arguments: object) -> None:
        raise Died

    monkeypatch.setattr(checkpoints, "save", dies)
    executor.run_all()

    assert (announced(stage), durable(stage)) == ([0, 1], 0)
    assert list((tmp_path / "weights").glob("v00000001-*"))

    # The next trainer abandons it
    monkeypatch.undo()
    stage.begin()
    assert stage.trainer.saver.abandoned == ((1, 1),)
    stage.drain()
    assert announced(stage) == [0, 1, 2, 3, 4, 5]
    assert [step.step for step in stage.kept_steps()] == [1, 2, 3, 4]


def test_a_run_is_not_done_until_its_last_step_is_saved(tmp_path: Path) -> None:
    stage, _ = later(tmp_path)
    while stage.trainer.learner.steps_done < 4:
        batch(stage)

    assert not stage.trainer.done()
    stage.turn()
    assert stage.trainer.done()
    assert announced(stage) == [0, 1, 2, 3, 4]


def test_a_stopped_trainer_saves_its_trained_steps(tmp_path: Path) -> None:
    stage, _ = later(tmp_path)
    while stage.trainer.learner.steps_done < 2:
        batch(stage)

    stage.trainer.go_on(lambda: True)

    assert announced(stage) == [0, 1, 2]


def test_a_thread_pool_saves_every_step(tmp_path: Path) -> None:
    stage = Stage(tmp_path, LATER, executor=lambda: ThreadPoolExecutor(1))

    stage.drain()

    assert announced(stage) == [0, 1, 2, 3, 4]
    assert [step.step for step in stage.steps()] == [1, 2, 3, 4]
    assert durable(stage) == 4
    stage.trainer.saver.executor.shutdown()


def test_a_store_outage_during_a_save_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage, executor = later(tmp_path)
    while stage.trainer.learner.steps_done < 1:
        batch(stage)

    def away(*arguments: object, **named: object) -> None:
        msg = "the store does not answer"
        raise Unavailable(msg)

    monkeypatch.setattr("rollcall.consumers.training.trainer.AWAY_S", 0.0)
    with monkeypatch.context() as patch:
        patch.setattr(publication, "write_weights", away)
        executor.run_all()
        for _ in range(3):
            batch(stage)
            executor.run_all()
        assert stage.trainer.learner.steps_done <= 2
        assert announced(stage) == [0]
    stage.drain()

    assert announced(stage) == [0, 1, 2, 3, 4]
    assert [step.step for step in stage.steps()] == [1, 2, 3, 4]


def test_no_checkpoint_replaces_one_with_unacked_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rollcall.consumers.training.trainer.AWAY_S", 0.0)
    stage, executor = later(tmp_path)
    own = stage.trainer.saver.publisher
    assert isinstance(own, MemoryPublisher)
    assert own is not stage.trainer.publisher
    while stage.trainer.learner.steps_done < 1:
        batch(stage)
    own.hold_acks = True
    executor.run_all()
    for _ in range(5):
        batch(stage)
        executor.run_all()

    assert (durable(stage), announced(stage)) == (1, [0])
    assert len(stage.steps()) == 1, "it is written once, however often it is waited for"
    own.hold_acks = False
    stage.drain()
    assert announced(stage) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("config", "executor"),
    cases(
        [
            (CONFIG, InlineExecutor),
            (EARLY, LaterExecutor),
            (LATER, InlineExecutor),
            (LATER, LaterExecutor),
        ],
        2,
    ),
    ids=["sync", "early, late", "async", "async, late"],
)
def test_a_trainer_killed_at_any_point_loses_and_doubles_nothing(
    config: LearnerConfig,
    executor: Callable[[], Executor],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """At each disk write and at each record, twice in one run."""
    config = changed(config, steps=2)
    counter = Kills(monkeypatch)
    point, lives = 0, 0
    while True:
        stage = Stage(tmp_path / str(point), config, executor=executor)
        for _ in range(2):
            counter.left = point
            with suppress(Died):
                stage.drain()
            counter.left = None
            if not stage.trainer.done():
                lives += 1
                stage.begin()
                assert loads(stage)
        stage.drain()
        steps = stage.kept_steps()
        assert [step.step for step in steps] == [1, 2]
        digests = {v: step.weights_digest for step in stage.steps() for v in [step.version]}
        assert len({(s.version, s.weights_digest) for s in stage.steps()}) == len(digests)
        assert durable(stage) == steps[-1].version
        if lives == 0 or point > 400:
            break
        lives = 0
        point += 1

    assert point > 30


def loads(stage: Stage) -> bool:
    """If the next trainer resumes from the newest announced version, or from its own."""
    seen = [v for v in announced(stage) if not _abandoned(stage, v)]
    return stage.trainer.learner.version == max(seen)


def _abandoned(stage: Stage, version: int) -> bool:
    return any(first <= version <= last for first, last in stage.trainer.saver.abandoned)


class Kills:
    """Counts a trainer's writes to disk and log, and ends it at one of them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.left: int | None = None
        for module in (atomic_files, shards, checkpoints):
            monkeypatch.setattr(module, "sync_to_disk", lambda path: self.point())
        put = MemoryPublisher._put

        def puts(publisher: MemoryPublisher, outgoing: Any) -> None:
            self.point()
            put(publisher, outgoing)

        monkeypatch.setattr(MemoryPublisher, "_put", puts)

    def point(self) -> None:
        if self.left is None:
            return
        self.left -= 1
        if self.left < 0:
            raise Died


@pytest.mark.parametrize("announce", ["durable", "early"])
def test_steps_taken_between_kills_are_retrained_bit_for_bit(announce: str, tmp_path: Path) -> None:
    # Given a run each of whose trainers dies while its newest step is saved
    options = f'save = "async"\nannounce = "{announce}"\n'
    world = World(tmp_path, RECIPE.replace("group_size = 4\n", f"group_size = 4\n{options}"))
    for steps in (1, 2, 3, 4):
        executor = LaterExecutor()
        trainer = world.trainer()
        trainer.saver.executor = executor
        world.train(trainer, steps=steps)
        assert not executor.submitted[-1].done()
        if steps % 2:
            executor.run_all()
    world.train(world.trainer())

    # When its steps are trained again from the first checkpoint
    report = retrain_and_tell(
        world,
        world.folder.trained(),
        parse_steps("1..4"),
        version=None,
        threads=torch.get_num_threads(),
        tell=lambda line: None,
    )

    # Then no bit differs
    assert [step["step"] for step in report["steps"]] == [1, 2, 3, 4]
    assert report["differing"] == []


def test_weights_saved_later_are_written_once_under_two_names(tmp_path: Path) -> None:
    stage, _ = later(tmp_path)

    stage.drain()

    [published] = (tmp_path / "weights").glob("v00000004-*")
    [shard] = (tmp_path / "checkpoints" / "v00000004").glob("weights-*")
    assert shard.samefile(published)
    published.unlink()
    assert durable(stage) == 4


# A full disk


def test_the_full_disk_message_also_counts_removable_deltas(tmp_path: Path) -> None:
    run = TrainingRun("run", "policy", tmp_path, {}, "s", AdmissionRule(0, 4, 4, 2))
    run.checkpoints.mkdir()
    publication = Publication(run.weights, Publishing(weights="delta", full_every=3))
    for version in range(6):
        data = bytes(999) + bytes([version])
        publication.write(version, {"w": RawTensor("U8", (1000,), data)})

    text = str(disk_full(run, 10**9))

    # Versions 4 and 5 are made from version 3
    assert "3 older files, 2 of them deltas in" in text


def test_tensors_with_known_digests_are_not_hashed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = replace(Counting().state(), weights={"w": RawTensor("U8", (4,), b"abcd")})
    written = Publication(str(tmp_path), Publishing(precision="float32")).write(0, state.weights)
    path = local_path(written.newest.uri)

    def hashes(tensors: Mapping[str, RawTensor]) -> dict[str, str]:
        if tensors.keys() & state.weights.keys():
            raise Died
        return digests_of(tensors)

    monkeypatch.setattr(shards, "digests_of", hashes)
    made = checkpoints.Checkpoint(state, -1)
    root = tmp_path / "checkpoints"
    with pytest.raises(Died):
        checkpoints.save(root, made, PublishedFile(path))

    checkpoints.save(root, made, PublishedFile(path, written.sha256s))

    held = checkpoints.load_latest(root).checkpoint
    assert held is not None
    assert held.state.weights == state.weights
    # Digests of other tensors say nothing about these
    assert PublishedFile(path, {"x": "y"}).sha256s_of(parts_of(state.weights)) is None
    assert PublishedFile(path, written.sha256s).sha256s_of(parts_of(state.weights, 0, 2)) is None


def test_a_full_disk_stops_the_step_and_names_removable_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = Stage(tmp_path)
    stage.train(3)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(10, 10, 0))

    with pytest.raises(DiskFull) as caught:
        stage.drain()

    text = str(caught.value)
    assert "0.0 MB free and the next version of 'policy' needs" in text
    assert "What could go: checkpoints v00000000 to v00000001 (" in text
    assert "2 older files in" in text
    assert stage.trainer.learner.steps_done == 3
    monkeypatch.undo()
    stage.begin()
    stage.drain()
    assert [step.step for step in stage.steps()] == [1, 2, 3, 4]


@pytest.mark.parametrize("config", [CONFIG, LATER, EARLY])
@pytest.mark.parametrize("place", ["weights", "checkpoint"])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_disk_that_fills_during_a_save_stops_training_by_name(
    place: str, number: int, config: LearnerConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = Stage(tmp_path, config)
    stage.train(1)

    def full(*arguments: Any) -> None:
        raise OSError(number, "it is full")

    with monkeypatch.context() as patch:
        if place == "weights":
            patch.setattr(atomic_files, "sync_to_disk", full)
        else:
            patch.setattr(shards, "sync_to_disk", full)
        with pytest.raises(DiskFull, match="nothing announced is missing"):
            stage.drain()

    early = config.saving.announce == "early" and place == "checkpoint"
    assert announced(stage) == [0, 1, 2] if early else [0, 1]
    assert durable(stage) == 1
    assert not list(tmp_path.rglob("*.tmp"))
    stage.begin()
    stage.drain()
    assert [step.step for step in stage.kept_steps()] == [1, 2, 3, 4]


def test_weights_of_an_unannounced_step_are_removed_at_restart(
    tmp_path: Path,
) -> None:
    stage, _ = later(tmp_path)
    stage.train(1)
    (tmp_path / "weights" / "v00000007-0123456789abcdef.safetensors").write_bytes(b"never said")

    stage.begin()

    assert not list((tmp_path / "weights").glob("v00000007-*"))


def test_early_announcements_require_asynchronous_saving() -> None:
    with pytest.raises(Refused, match="set save to 'async'"):
        changed(CONFIG, announce="early")
    with pytest.raises(Refused, match="unknown save 'asink'; did you mean 'async'"):
        changed(CONFIG, save="asink")
    assert changed(CONFIG, save="async").digest() == CONFIG.digest()


def test_the_save_stall_is_in_the_next_steps_record(
    tmp_path: Path,
) -> None:
    stage = Stage(tmp_path)

    with capture_logs() as logs:
        stage.drain()

    stalls = [step.metrics["save_stall_s"] for step in stage.steps()]
    assert all(stall > 0 for stall in stalls)
    assert [entry["version"] for entry in logs if entry["event"] == "step_trained"] == [1, 2, 3, 4]
