"""Published weights derive from the master weights, which do not change."""

from pathlib import Path

import numpy as np
import pytest
import torch

from rollcall.schemas.errors import Unavailable
from rollcall.schemas.messages import WeightsFile
from rollcall.schemas.published_weights import Published
from rollcall.schemas.weights import RawTensor, weights_digest
from rollcall.trainer.config.learner_config import LearnerConfig
from rollcall.trainer.learner.step import Learner
from rollcall.trainer.weights import weights_files
from rollcall.trainer.weights.publication import (
    Publication,
    Publishing,
    as_published,
    rounded,
    widened,
)
from rollcall.trainer.weights.tensors import load_tensors, tensors_of, view_of
from tests.support.policies import lake

DELTAS = Publishing("bfloat16", "delta", full_every=4)
Weights = dict[str, RawTensor]


def weights(*values: float) -> Weights:
    """200 elements, the first of them as given."""
    data = np.zeros(200, "<f4")
    data[: len(values)] = values
    return {"w": RawTensor("F32", (200,), data.tobytes())}


def test_float32_is_rounded_to_the_nearest_even_bfloat16() -> None:
    bits = np.array([0x3F808000, 0x3F818000, 0x3F808001, 0x80000000, 0x7F800000], "<u4")
    given = {"w": RawTensor("F32", (5,), bits.tobytes()), "n": RawTensor("I64", (), bytes(8))}

    made = rounded(given)

    assert np.frombuffer(made["w"].data, "<u2").tolist() == [
        0x3F80, 0x3F82, 0x3F81, 0x8000, 0x7F80,
    ]  # fmt: skip
    assert (made["w"].dtype, made["n"]) == ("BF16", given["n"])
    assert rounded(widened(made)) == made


def test_the_canary_comes_from_published_weights_and_the_masters_stay(tmp_path: Path) -> None:
    learner = Learner(str(lake(tmp_path / "policy")), LearnerConfig())
    masters = learner.tensors()
    own = learner.canary()

    learner.published = "bfloat16"
    published = learner.canary()

    assert learner.tensors() == masters
    load_tensors(learner.model, widened(rounded(masters)))
    learner.published = "float32"
    assert published == learner.canary() != own


def test_master_weights_are_restored_if_scoring_raises(tmp_path: Path) -> None:
    model = torch.nn.Linear(3, 3)
    before = tensors_of(model)

    def fail() -> None:
        with as_published(model, "bfloat16"):
            assert tensors_of(model) != before
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert tensors_of(model) == before


def test_a_version_is_full_at_first_periodically_and_after_large_changes(tmp_path: Path) -> None:
    publication = Publication(str(tmp_path), DELTAS)
    kinds = {}
    for version, values in enumerate([(1.0,), (2.0,), (3.0,), (4.0,), (5.0,), (6.0,) * 50, (7.0,)]):
        published = publication.write(version, weights(*values))
        kinds[version] = len(published.deltas)
        assert publication.write(version, weights(9.0)) is published

    assert kinds == {0: 0, 1: 1, 2: 2, 3: 3, 4: 0, 5: 0, 6: 0}
    for version, value in ((3, 4.0), (6, 7.0)):
        assert weights_files.of_version(str(tmp_path), version) == weights(value)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_later_changes_of_a_learner_do_not_alter_published_versions(
    tmp_path: Path, precision: str
) -> None:
    model = torch.nn.Linear(40, 40)
    publication = Publication(str(tmp_path), Publishing(precision, "delta"))
    for version in range(3):
        before = publication.publishing.of(tensors_of(model))
        published = publication.write(version, tensors_of(model, view_of))
        with torch.no_grad():
            model.bias[version] += 1.0

        assert len(published.deltas) == version
        assert published.weights_digest == weights_digest(before, published.weights_digest)
        assert weights_files.published_of(str(tmp_path), version) == before


def test_a_version_that_failed_to_write_is_not_used_as_a_base(tmp_path: Path) -> None:
    publication = Publication(str(tmp_path / "there"), DELTAS)
    publication.write(0, weights(1.0))
    (tmp_path / "there").rename(tmp_path / "away")
    (tmp_path / "there").touch()
    with pytest.raises(Unavailable):
        publication.write(1, weights(2.0))
    (tmp_path / "there").unlink()
    (tmp_path / "away").rename(tmp_path / "there")

    assert len(publication.write(1, weights(3.0)).deltas) == 1
    assert weights_files.of_version(str(tmp_path / "there"), 1) == weights(3.0)


def test_a_recipe_without_publication_settings_publishes_full_files(tmp_path: Path) -> None:
    published = Publication(str(tmp_path), Publishing()).write(3, weights(1.0))

    assert isinstance(published, Published)
    assert isinstance(published.full, WeightsFile)
    assert published.weights_digest == weights_digest(weights(1.0))
    assert len(published.full.sha256) == 64
    assert not published.deltas
