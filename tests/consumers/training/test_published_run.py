"""A run with servers that get bfloat16 deltas: the training is unchanged."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from rollcall.compose.workers.served_policy import run_engine
from rollcall.consumers.audit.audit import audit
from rollcall.consumers.training import trainer as trainer_module
from rollcall.schemas.errors import Unavailable
from rollcall.schemas.messages import PolicyVersion
from rollcall.schemas.published_weights import HeldWeights
from rollcall.schemas.weights import weights_digest
from rollcall.trainer.checkpoints.checkpoint import load_latest
from rollcall.trainer.weights import publication, weights_files
from rollcall.trainer.weights.publication import rounded
from tests.support.tiers import cases
from tests.support.tiny_run import RECIPE, World

PUBLISHED = RECIPE.replace(
    "[policy]\n", '[policy]\npublish = "bfloat16"\nweights = "delta"\nfull_every = 3\n'
).replace("steps = 4", "steps = 4\nlr = 1e-6")


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    return World(tmp_path, PUBLISHED)


def path_of(version: PolicyVersion) -> Path:
    file = version.deltas[-1] if version.deltas else version.full
    return Path(file.uri.removeprefix("file://"))


def newest_weights(world: World) -> dict[str, object]:
    checkpoint = load_latest(world.folder.run().checkpoints).checkpoint
    assert checkpoint is not None
    return dict(rounded(checkpoint.state.weights))


def test_servers_get_only_deltas_and_training_is_unchanged(world: World) -> None:
    trainer = world.trainer()
    world.train(trainer)

    versions = world.versions()
    assert [len(version.deltas) for version in versions] == [0, 1, 2, 0, 1]
    assert {version.precision for version in versions} == {"bfloat16"}
    assert [step.version for step in world.steps()] == [1, 2, 3, 4]
    assert [step.weights_digest for step in world.steps()] == [
        version.weights_digest for version in versions[1:]
    ]
    # The last is what the checkpoint's masters are rounded to; the masters are no bfloat16
    assert HeldWeights().read(versions[-1]) == newest_weights(world)
    masters = load_latest(world.folder.run().checkpoints).checkpoint
    assert masters is not None
    assert {tensor.dtype for tensor in masters.state.weights.values()} == {"F32"}
    # Older weights can be asked for still, as a trainer computes with them
    past = weights_files.of_version(world.folder.run().weights, 2)
    assert past is not None
    assert weights_digest(rounded(past), "tensors:") == versions[2].weights_digest


def test_a_lost_delta_is_replaced_by_full_weights(world: World) -> None:
    world.train(world.trainer(), steps=2)
    lost = world.versions()[-1]
    assert lost.deltas
    path_of(lost).unlink()

    world.train(world.trainer())

    announced = world.versions()
    again = [version for version in announced if version.version == 2][-1]
    assert (again.deltas, again.weights_digest) == ((), lost.weights_digest)
    assert [step.version for step in world.steps()] == [1, 2, 3, 4]
    assert HeldWeights().read(announced[-1]) == newest_weights(world)


def test_a_restarted_trainer_continues_with_deltas(world: World) -> None:
    world.train(world.trainer(), steps=1)

    world.train(world.trainer())

    assert [len(version.deltas) for version in world.versions()] == [0, 1, 2, 0, 1]
    assert HeldWeights().read(world.versions()[-1]) == newest_weights(world)


def test_steps_published_in_bfloat16_are_retrained_bit_for_bit(world: World) -> None:
    world.train(world.trainer())

    again = world.trained_again(1, 4)

    assert [step.identical for step in again] == [True] * 4


@pytest.mark.parametrize("save", ["sync", "async"])
@pytest.mark.parametrize("lost", cases(["delta", "full"]))
def test_lost_weights_are_rewritten_for_a_starting_server_during_a_run(
    tmp_path: Path, lost: str, save: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The trainer is not restarted: it waits for the server, which waits for the weights."""
    monkeypatch.setattr(trainer_module, "LOOK_EVERY_S", 0.0)
    world = World(tmp_path, PUBLISHED.replace("steps = 4", f'steps = 4\nsave = "{save}"'))
    trainer = world.trainer()
    world.train(trainer, steps=2)
    before = world.versions()[-1]
    file = before.full if lost == "full" else before.deltas[-1]
    Path(file.uri.removeprefix("file://")).unlink()

    world.serve_by(run_engine(world.folder, world.settings))
    world.train(trainer)

    again = [each for each in world.versions() if each.version == before.version][-1]
    assert (again.deltas, again.weights_digest) == ((), before.weights_digest)
    assert [step.version for step in world.steps()] == [1, 2, 3, 4]
    assert HeldWeights().read(world.versions()[-1]) == newest_weights(world)
    retrained = world.trained_again(1, 4)
    assert [step.identical for step in retrained] == [True] * 4
    assert audit(world.factory).breaches == []


def test_truncated_full_weights_are_rewritten_unchanged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trainer_module, "LOOK_EVERY_S", 0.0)
    world = World(tmp_path)
    trainer = world.trainer()
    world.train(trainer, steps=1)
    path = path_of(world.versions()[-1])
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])

    trainer.turn(0.0)

    assert path.read_bytes() == whole
    announced = [version.version for version in world.versions()]
    assert announced == sorted(set(announced))  # the record leads there still


def test_a_run_continues_during_a_store_outage_and_checks_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trainer_module, "LOOK_EVERY_S", 0.0)
    monkeypatch.setattr(trainer_module, "AWAY_S", 0.0)
    trainer = world.trainer()
    world.train(trainer, steps=2)
    path_of(world.versions()[-1]).unlink()
    written = publication.write_tensors

    def away(*_: object) -> None:
        msg = "no such disk"
        raise Unavailable(msg)

    monkeypatch.setattr(publication, "write_tensors", away)
    trainer.turn(0.0)
    assert len(world.versions()) == 3
    monkeypatch.setattr(publication, "write_tensors", written)
    trainer.turn(0.0)

    assert [len(version.deltas) for version in world.versions()[:4]] == [0, 1, 2, 0]
    world.train(trainer)
    assert [step.version for step in world.steps()] == [1, 2, 3, 4]
