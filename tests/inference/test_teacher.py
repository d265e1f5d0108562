"""A teacher scores tokens that it did not sample."""

from pathlib import Path

import numpy as np
import pytest
import torch

from rollcall.inference.policy_dir import load_policy
from rollcall.inference.teacher import Teacher, require_same_vocabulary, vocabulary_digest
from rollcall.schemas.errors import Refused, WorkFailed
from rollcall.schemas.messages import Sequence
from rollcall.schemas.packed import pack_ids, pack_logprobs
from tests.support.policies import lake, writer


def sequence(ids: list[int], mask: list[int]) -> Sequence:
    empty = pack_logprobs([0.0] * len(ids))
    return Sequence(pack_ids(ids), bytes(mask), empty, pack_ids(ids), bytes(mask), ())


def test_a_teacher_scores_sampled_tokens_only(
    tmp_path: Path,
) -> None:
    teacher = Teacher(lake(tmp_path / "p"))
    ids = [0, 7, 1, 3, 8, 1, 4]

    scores = teacher.logprobs(sequence(ids, [0, 0, 0, 1, 0, 0, 1]))

    with torch.no_grad():
        said = load_policy(tmp_path / "p").model(torch.tensor([ids])).logits[0].log_softmax(-1)
    expected = [0, 0, 0, float(said[2, 3]), 0, 0, float(said[5, 4])]
    assert scores.dtype == np.float32
    assert scores.tolist() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(
    ("ids", "mask"), [([], []), ([1], [1]), ([1, 99], [0, 0]), ([1, 2], [1, 0])]
)
def test_a_token_without_a_sampled_context_has_no_score(
    tmp_path: Path, ids: list[int], mask: list[int]
) -> None:
    assert Teacher(lake(tmp_path / "p")).logprobs(sequence(ids, mask)).tolist() == [0.0] * len(ids)


@pytest.mark.parametrize(
    ("ids", "reason"),
    [([0, 32], "token 32 is none"), ([-1, 3], "token -1 is none"), ([1] * 97, "97 tokens, more")],
)
def test_tokens_that_the_teacher_cannot_read_are_refused(
    tmp_path: Path, ids: list[int], reason: str
) -> None:
    with pytest.raises(WorkFailed, match=reason):
        Teacher(lake(tmp_path / "p")).logprobs(sequence(ids, [0] + [1] * (len(ids) - 1)))


def test_the_vocabulary_digest_depends_on_tokens_and_not_on_weights(tmp_path: Path) -> None:
    first, second = lake(tmp_path / "gpt2"), lake(tmp_path / "llama", "llama")
    other = writer(tmp_path / "writer")

    assert vocabulary_digest(first) == vocabulary_digest(second)
    require_same_vocabulary(first, second)
    with pytest.raises(Refused, match="another vocabulary"):
        require_same_vocabulary(first, other)
