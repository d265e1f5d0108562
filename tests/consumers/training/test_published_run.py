"""A run whose servers are given bfloat16, mostly as what changed: nothing else is otherwise."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from consumers.history.retraining import plan, train
from schemas.messages import PolicyVersion
from schemas.published_weights import HeldWeights
from schemas.weights import weights_digest
from tests.support.tiny_run import RECIPE, World
from trainer import weights_files
from trainer.checkpoint import load_latest
from trainer.publication import rounded

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


def test_servers_are_given_what_changed_and_learn_as_ever(world: World) -> None:
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


def test_a_lost_delta_is_mended_with_full_weights_by_the_next_trainer(world: World) -> None:
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


def test_a_trainer_that_begins_again_goes_on_with_deltas(world: World) -> None:
    world.train(world.trainer(), steps=1)

    world.train(world.trainer())

    assert [len(version.deltas) for version in world.versions()] == [0, 1, 2, 0, 1]
    assert HeldWeights().read(world.versions()[-1]) == newest_weights(world)


def test_steps_published_in_bfloat16_are_trained_again_bit_for_bit(world: World) -> None:
    world.train(world.trainer())

    again = list(train(plan(world.shop, world.folder.trained(), 1, 4), world.codec))

    assert [step.identical for step in again] == [True] * 4
