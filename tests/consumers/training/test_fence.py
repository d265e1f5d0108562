"""Two trainers of one run without a common lock: the log lets one of them continue."""

from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from shutil import copytree
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollcall.consumers.audit.audit import audit
from rollcall.consumers.training.trainer import Trainer
from rollcall.schemas.errors import RunSuperseded
from rollcall.schemas.messages import PolicyVersion, TrainStep
from rollcall.schemas.trajectory_refs import refs_of
from rollcall.schemas.weights import RawTensor, from_uri, weights_digest
from rollcall.trainer.checkpoints.step_chain import StepChain
from rollcall.trainer.weights.weights_files import files_in
from tests.support.staged_run import Stage
from tests.support.tiers import examples


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    stage = Stage(tmp_path / "one")
    stage.check = lambda: None  # type: ignore[method-assign]
    return stage


def end_all(stage: Stage) -> None:
    for request in stage.in_the_air():
        stage.end(request, reward=float(len(stage.ended) % 2))


def turned(stage: Stage, trainers: list[Trainer], order: Iterator[int]) -> dict[int, str]:
    """Turn trainers in some order until one is done; return why the others left."""
    left: dict[int, str] = {}
    for number in order:
        stage.trainer = max(trainers, key=lambda trainer: trainer.learner.steps_done)
        end_all(stage)
        try:
            trainers[number].turn(0.0)
        except RunSuperseded as error:
            left[number] = str(error)
        if any(trainer.done() for trainer in trainers) or len(left) == len(trainers):
            return left
    return left


def counted(stage: Stage) -> list[TrainStep]:
    chain = StepChain()
    return [step for step in stage.steps() if chain.take(step)]


def assert_one_line(stage: Stage) -> None:
    steps = counted(stage)
    assert len({step.writer for step in steps}) == 1
    assert [step.step for step in steps] == [1, 2, 3, 4]
    used = Counter(ref.rollout_id for step in steps for ref in refs_of(step))
    assert set(used.values()) == {1}
    announced = [
        stage.codec.decode(record.value, PolicyVersion)
        for record in stage.log.all(stage.topics.versions)
    ]
    assert {v.version for v in announced} - {0} == {step.version for step in steps}
    digests = {step.version: step.weights_digest for step in steps}
    assert all(digests.get(v.version, v.weights_digest) == v.weights_digest for v in announced)


@settings(max_examples=examples(15), deadline=None)
@given(st.lists(st.integers(0, 1), min_size=1, max_size=20), st.integers(0, 2))
def test_the_first_of_two_trainers_continues_and_the_other_leaves(
    order: list[int], before: int
) -> None:
    with TemporaryDirectory() as folder:
        stage = Stage(Path(folder) / "one")
        stage.turn()
        stage.train(before)
        stage.check = lambda: None  # type: ignore[method-assign]
        trainers = [stage.begin(), Trainer.__new__(Trainer)]
        stage.directory = Path(copytree(stage.directory, Path(folder) / "two"))
        trainers[1] = stage.begin()

        left = turned(stage, trainers, iter(order * 5 + [0, 1] * 60))

        winner = next(n for n, trainer in enumerate(trainers) if trainer.done())
        assert counted(stage)[-1].writer == trainers[winner].saver.fence.writer
        with pytest.raises(RunSuperseded, match="another trainer of run 'run' came first: step"):
            trainers[1 - winner].turn(0.0)
        assert set(left) <= {1 - winner}
        steps = [step for step in counted(stage) if step.step > before]
        assert len({step.writer for step in steps}) == 1
        used = Counter(ref.rollout_id for step in counted(stage) for ref in refs_of(step))
        assert set(used.values()) == {1}


def test_a_losing_trainers_step_is_not_announced(stage: Stage) -> None:
    """Both write; each reads back what came first."""
    one = stage.trainer
    stage.directory = Path(copytree(stage.directory, stage.directory.parent / "two"))
    two = stage.begin()
    two.saver.fence.follow = lambda: None  # type: ignore[method-assign]
    for _ in range(4):
        end_all(stage)
        for trainer in (one, two):
            with suppress(RunSuperseded):
                trainer.turn(0.0)
        if len(stage.steps()) > 1:
            break
    assert len(stage.steps()) == 2, "the loser wrote one step"
    stage.trainer = one
    stage.drain()

    assert_one_line(stage)
    report = audit(stage, drained=False)  # type: ignore[arg-type]
    assert [b.text for b in report.breaches if "is a fork of the chain" in b.text]


@settings(max_examples=examples(15), deadline=None)
@given(order=st.lists(st.integers(0, 1), min_size=1, max_size=12), stop=st.integers(4, 40))
def test_two_trainers_in_one_folder_damage_no_counted_weights(order: list[int], stop: int) -> None:
    """As on a network disk without locks: the losing trainer writes into the same folder."""
    with TemporaryDirectory() as folder:
        stage = Stage(Path(folder) / "one")
        stage.check = lambda: None  # type: ignore[method-assign]
        trainers = [stage.trainer, stage.begin()]
        other = trainers[1]
        other.saver.fence.follow = lambda: None  # type: ignore[method-assign]
        learnt = lambda: {"w": RawTensor("U8", (1,), bytes([99 + other.learner.version]))}  # noqa: E731
        other.learner.tensors = learnt  # type: ignore[method-assign]
        turned(stage, trainers, iter((order * stop)[:stop]))

        where = f"{stage.directory}/weights"
        for step in counted(stage)[-1:]:
            files = [file for file in files_in(where) if file.version == step.version]
            whole = [from_uri(f"{where}/{file.name}") for file in files]
            digests = {weights_digest(tensors, step.weights_digest) for tensors in whole}
            assert step.weights_digest in digests

        # A restarted trainer continues from counted steps, or names the checkpoint in the way
        said = ""
        try:
            again = stage.begin()
        except RunSuperseded as error:
            said = str(error)
        if said:
            assert "move it away" in said or "remove elsewhere" in said
            return
        turned(stage, [again], iter([0] * 60))
        assert again.done()


def test_a_trainer_that_left_stays_away_after_a_restart(stage: Stage) -> None:
    one = stage.trainer
    stage.directory = Path(copytree(stage.directory, stage.directory.parent / "two"))
    two = stage.begin()
    turned(stage, [one, two], iter([0, 0, 0, 0, 1]))

    with pytest.raises(
        RunSuperseded, match="remove elsewhere of this folder to go on from version 0"
    ):
        stage.begin()
    (stage.directory / "elsewhere").unlink()
    back = stage.begin()
    turned(stage, [back], iter([0] * 40))
    assert back.done(), "an operator decided for this folder"
    assert {step.step for step in counted(stage)[-4:]} == {1, 2, 3, 4}


def test_restarts_and_older_checkpoints_resume_as_before(stage: Stage) -> None:
    del stage.check
    stage.train(2)
    stage.begin()
    stage.train(3)
    (newest,) = (stage.directory / "checkpoints").glob("v00000003")
    (newest / "manifest.json").unlink()
    stage.begin()
    stage.drain()

    assert [(s.step, s.version, s.parent) for s in counted(stage)] == [
        (1, 1, 0), (2, 2, 1), (3, 3, 2), (3, 4, 2), (4, 5, 4),
    ]  # fmt: skip
