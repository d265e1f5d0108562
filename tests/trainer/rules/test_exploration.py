"""Failed groups explore more, the others as configured."""

import numpy as np
import pytest
import torch

from rollcall.schemas.errors import Refused
from rollcall.schemas.rules import choose
from rollcall.trainer.batch.weighing import first_of_turns
from rollcall.trainer.config.learner_config import LearnerConfig
from rollcall.trainer.learner.forward import uniform_kl_of
from rollcall.trainer.rules.catalogue import EXPLORATIONS
from rollcall.trainer.rules.exploration import Target
from rollcall.trainer.rules.rewards import Rewards
from tests.support.golden import golden
from tests.support.reward_views import view


def weights(rule: object, rewards: Rewards) -> list[float]:
    found: np.ndarray = choose("exploration", rule, EXPLORATIONS)(rewards, 0.01)
    return found.tolist()


@golden("exploration", "even")
def test_all_groups_explore_equally_by_default() -> None:
    assert weights("even", view([1, 0, 0], [0, 0, 1])) == [0.01] * 3
    assert LearnerConfig().rules.exploration.rule.name == "even"


@golden("exploration", "explore_failed")
def test_a_group_without_a_success_explores_more() -> None:
    rewards = view([1, -0.1, 0, -0.05, 0.2, 0], [0, 0, 1, 1, 2, 2])
    stricter = {"name": "explore_failed", "weight": 0.1, "above": 0.5}

    assert weights("explore_failed", rewards) == [0.01, 0.01, 0.05, 0.05, 0.01, 0.01]
    assert weights(stricter, rewards) == [0.01, 0.01, 0.1, 0.1, 0.1, 0.1]


@golden("exploration", "entropy_target")
def test_the_bonus_follows_the_entropy_of_the_previous_step() -> None:
    """Skywork's Δ 0.005 around 0.2: two steps below, one above, and one of no number."""
    options, weight, seen = Target(), 0.01, []
    for entropy in (0.1, 0.19, 0.3, float("nan"), 0.2):
        weight = options.after(weight, entropy)
        seen.append(round(weight, 6))

    assert seen == [0.015, 0.02, 0.015, 0.015, 0.015]
    assert Target().after(0.001, 5.0) == 0
    assert Target(most=0.02).after(0.019, 0.0) == 0.02
    for before, given in ((float("nan"), 0.01), (0.2, 0.01), (0.21, 0.0)):
        assert weights("entropy_target", view([1, 0], entropy_before=before)) == [given] * 2


@golden("exploration", "uniform_kl")
def test_only_groups_of_failures_pay_the_uniform_kl() -> None:
    rewards = view([1, -0.1, 0, -0.05], [0, 0, 1, 1])
    found = choose("exploration", "uniform_kl", EXPLORATIONS)(rewards, 0.01)
    log_p = torch.tensor([[0.5, 0.25, 0.25], [0.25, 0.5, 0.25]]).log()

    assert found.entropy_N.tolist() == [0.01] * 4
    assert found.uniform_N.tolist() == [0, 0, 0.3, 0.3]
    # ln 2 · 5/3 - ln 3, and over the first two words ln 2 · 3/2 - ln 2.
    assert uniform_kl_of(log_p, (), 1.0).tolist() == pytest.approx([0.056633] * 2, abs=5e-7)
    assert uniform_kl_of(log_p, (0, 1), 1.0).tolist() == pytest.approx([0.346574] * 2, abs=5e-7)


def test_uniform_kl_can_apply_to_the_first_tokens_of_each_turn() -> None:
    mask = np.array([0, 1, 1, 1, 0, 0, 1, 0, 1, 1], dtype=np.bool_)
    rule = {"name": "uniform_kl", "first": 1}

    assert choose("exploration", rule, EXPLORATIONS)(view([0, 0]), 0.01).first == 1
    assert first_of_turns(mask, 0).tolist() == mask.tolist()
    assert first_of_turns(mask, 1).nonzero()[0].tolist() == [1, 6, 8]
    assert first_of_turns(mask, 2).nonzero()[0].tolist() == [1, 2, 6, 8, 9]
    assert first_of_turns(mask, 9).tolist() == mask.tolist()


def test_the_gradient_on_a_token_does_not_vanish_with_its_probability() -> None:
    logits = torch.tensor([[0.0, 0.0, -12.0]], dtype=torch.float64, requires_grad=True)
    uniform_kl_of(logits, (), 1.0).sum().backward()
    assert logits.grad is not None

    p = logits.detach().softmax(-1)
    torch.testing.assert_close(logits.grad, p - 1 / 3)
    check = torch.randn(3, 5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda z: uniform_kl_of(z, (0, 3), 0.7), (check,))


def test_a_token_of_zero_probability_has_a_finite_gradient() -> None:
    logits = torch.tensor([[0.0, 0.0, -torch.inf]], requires_grad=True)
    uniform_kl_of(logits, (), 1.0).sum().backward()

    assert logits.grad is not None
    assert logits.grad.isfinite().all()


@pytest.mark.parametrize("tokens", [[1, 1], [-1], ["L"], 3])
def test_invalid_token_ids_are_refused(tokens: object) -> None:
    with pytest.raises(Refused, match="exploration 'uniform_kl': tokens is"):
        LearnerConfig.of({"exploration": {"name": "uniform_kl", "tokens": tokens}})


@pytest.mark.parametrize(("first", "why"), [(-1, "first is -1; give 0"), (0.5, "first is 0.5")])
def test_an_invalid_number_of_first_tokens_is_refused(first: object, why: str) -> None:
    with pytest.raises(Refused, match=f"exploration 'uniform_kl': {why}"):
        LearnerConfig.of({"exploration": {"name": "uniform_kl", "first": first}})


def test_a_negative_weight_is_refused() -> None:
    with pytest.raises(Refused, match="exploration 'explore_failed': weight is -1"):
        LearnerConfig.of({"exploration": {"name": "explore_failed", "weight": -1}})
