"""Distillation: the effect of a teacher's scores on advantages, and the refusals."""

from collections.abc import Sequence as Many
from dataclasses import replace
from math import inf, nan

import numpy as np
import pytest
import torch

from rollcall.schemas.errors import Refused
from rollcall.schemas.messages import ScoredTrajectory, TokenScores
from rollcall.schemas.packed import pack_logprobs
from rollcall.schemas.rules import RuleChoice
from rollcall.trainer.config.learner_config import LearnerConfig
from rollcall.trainer.curation.judge import judge
from rollcall.trainer.learner.step import Learner
from rollcall.trainer.rules.distillation import ReverseKl, reverse_kl
from rollcall.trainer.rules.samples import Sample, mine
from rollcall.trainer.rules.teacher_scores import teacher_logprobs
from tests.support.golden import golden
from tests.support.scored_trajectories import CURATION, scored, sequence, some_samples
from tests.support.token_views import piece

TEACHER = "teacher:somewhere"
TAUGHT = replace(CURATION, needs_group=False, teacher="teacher:")


def with_scores(record: ScoredTrajectory, *scores: Many[float]) -> ScoredTrajectory:
    tokens = tuple(
        TokenScores(TEACHER, number, pack_logprobs(each)) for number, each in enumerate(scores)
    )
    return replace(record, token_scores=tokens)


def taught(samples: list[Sample], logprob: float) -> list[Sample]:
    """The same samples, with this teacher score for each of their tokens."""
    made = []
    for each in samples:
        [only] = each.scored.trajectory.sequences or ()
        scores = [logprob] * len(only.loss_mask)
        made.append(replace(each, scored=with_scores(each.scored, scores)))
    return made


@golden("distill", "reverse_kl")
@pytest.mark.parametrize(
    ("weight", "advantage", "gain"), [(1.0, 0.0, 0.6), (0.005, 2.0, 2.003), (0.5, -1.0, -0.7)]
)
def test_reverse_kl_adds_teacher_minus_student_log_probability(
    weight: float, advantage: float, gain: float
) -> None:
    lp_BT, teacher_BT = (torch.tensor([[x]], dtype=torch.float64) for x in (-1.0, -0.4))

    found_BT = reverse_kl(piece(lp_BT, lp_BT, advantage, teacher_BT=teacher_BT), ReverseKl(weight))

    assert found_BT.item() == pytest.approx(gain, abs=1e-12)


def test_a_token_likelier_under_the_student_gets_a_negative_term() -> None:
    lp_BT, teacher_BT = torch.tensor([[-0.1, -2.0]]), torch.tensor([[-1.1, -1.0]])

    found_BT = reverse_kl(piece(lp_BT, lp_BT, 0.0, teacher_BT=teacher_BT), ReverseKl())

    assert found_BT[0].tolist() == pytest.approx([-1.0, 1.0])


def test_the_term_has_no_gradient_and_skips_unscored_tokens() -> None:
    lp_BT = torch.tensor([[-1.0, -1.0, -1.0]], requires_grad=True)
    teacher_BT = torch.tensor([[-0.5, nan, -0.5]])
    mask_BT = torch.tensor([[True, True, False]])

    found_BT = reverse_kl(piece(lp_BT, lp_BT, 3.0, mask_BT, teacher_BT=teacher_BT), ReverseKl())

    assert found_BT[0].tolist() == pytest.approx([3.5, 3.0, 3.0])
    assert not found_BT.requires_grad


def test_only_failed_guides_failed_rollouts_alone() -> None:
    lp_BT, teacher_BT = torch.full((3, 1), -1.0), torch.full((3, 1), -0.4)
    rewards = torch.tensor([0.0, 0.9, 1.0]).double()

    found_BT = reverse_kl(
        piece(lp_BT, lp_BT, 0.0, teacher_BT=teacher_BT, reward_B=rewards),
        ReverseKl(only_failed=True),
    )

    assert found_BT[:, 0].tolist() == pytest.approx([0.6, 0.6, 0.0])


def test_alone_ignores_the_reward() -> None:
    lp_BT, teacher_BT = torch.tensor([[-1.0, -1.0]]), torch.tensor([[-0.4, nan]])

    found_BT = reverse_kl(piece(lp_BT, lp_BT, 9.0, teacher_BT=teacher_BT), ReverseKl(alone=True))

    assert found_BT[0].tolist() == pytest.approx([0.6, 0.0])


def test_only_own_tokens_need_scores_and_the_first_teacher_counts() -> None:
    two = (
        sequence([1, 2, 3], [0, 1, 1], policies=[255, 0, 1]),
        sequence([1, 2], [0, 1], policies=[255, 1]),
    )
    record = with_scores(scored("r", sequences=two, policies=("policy", "other")), [0, -2.0, inf])
    later = TokenScores("teacher:another", 0, pack_logprobs([0, -9.0, -9.0]))
    record = replace(record, token_scores=(*record.token_scores, later))

    found = teacher_logprobs(record, [mine(each, 0) for each in two], "teacher:")

    assert found is not None
    assert [np.nan_to_num(each, nan=7.0).tolist() for each in found] == [
        [7.0, -2.0, 7.0],
        [7.0] * 2,
    ]
    assert teacher_logprobs(record, [mine(each, 1) for each in two], "teacher:") is None
    assert judge(record, 0, 0, TAUGHT).sample is not None


@pytest.mark.parametrize(
    "scores", [(), ([0.0],), ([0.0, 1.0],), ([0.0, nan],), ([0.0, -inf],), ([0.0, -1e6],)]
)
def test_a_rollout_without_valid_scores_is_a_missing_member(scores: list[list[float]]) -> None:
    record = with_scores(scored("r"), *scores)

    assert judge(record, 0, 0, TAUGHT).reason == "untaught"
    assert judge(record, 0, 0, replace(TAUGHT, teacher="")).reason == ""


def test_a_step_moves_towards_the_teacher_and_reports_the_gap(model_directory: str) -> None:
    config = LearnerConfig(
        distill="reverse_kl", lr=1e-2, entropy=0.0, loss="policy_gradient", schedule="constant"
    )
    # Equal rewards: the learner learns from the teacher alone.
    samples = [replace(each, reward=1.0) for each in some_samples(1)]
    liked, disliked = Learner(model_directory, config), Learner(model_directory, config)

    first = liked.step(taught(samples, -0.01))
    disliked.step(taught(samples, -9.0))

    assert first["teacher_gap"] == pytest.approx(-2.5 + 0.01)
    assert likelihood(liked, samples) > likelihood(disliked, samples)


def likelihood(learner: Learner, samples: list[Sample]) -> float:
    """The mean log-ratio of new against old log-probabilities of the samples, all equal."""
    plain = Learner(str(learner.model.config._name_or_path), LearnerConfig(lr=1e-9))
    plain.load(learner.state())
    return plain.step(samples)["ratio_mean"]


@golden("distill", "none")
def test_without_a_teacher_scores_change_nothing(model_directory: str) -> None:
    samples = some_samples(2)
    plain = Learner(model_directory, LearnerConfig())
    scored_too = Learner(model_directory, LearnerConfig())

    told, also = plain.step(samples), scored_too.step(taught(samples, -0.1))

    assert told == also
    assert "teacher_gap" not in told


def test_distillation_options_are_checked_and_old_digests_stay() -> None:
    config = LearnerConfig.of({"distill": {"name": "reverse_kl", "weight": 0.005}})
    assert config.rules.teacher == "teacher:"
    assert config.digest() != LearnerConfig().digest()
    assert LearnerConfig(distill="none").rules.teacher == ""
    for wrong in ("reverse", {"name": "reverse_kl", "weight": 0.0}, {"name": "none", "weight": 1}):
        with pytest.raises(Refused, match="distill"):
            LearnerConfig(distill=RuleChoice.of("distill", wrong))
