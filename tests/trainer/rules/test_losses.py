"""Values and gradients match published ones; a token past the clip gets no gradient."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rollcall.schemas.errors import Refused
from rollcall.schemas.rules import NoOptions, choose
from rollcall.trainer.rules.aggregates import AGGREGATES, token_weights
from rollcall.trainer.rules.catalogue import LOSSES
from rollcall.trainer.rules.losses import (
    CLIP_HIGHER,
    GSPO,
    PPO_CLIP,
    Clip,
    gspo,
    policy_gradient,
    ppo_clip,
)
from rollcall.trainer.rules.tokens import entropy, k3
from tests.support.golden import golden
from tests.support.token_views import everything, gain_and_gradient, piece


@golden("loss", "ppo_clip", "clip_higher")
@pytest.mark.parametrize(
    ("ratio", "advantage", "clip", "gain", "gradient"),
    [
        (1.3, 1, Clip(), 1.2, 0),
        (1.3, -1, Clip(), -1.3, -1.3),
        (0.7, 1, Clip(), 0.7, 0.7),
        (0.7, -1, Clip(), -0.8, 0),
        (1.3, 1, CLIP_HIGHER.options(), 1.28, 0),
        (5, -1, Clip(dual=3), -3, 0),
        (5, -1, Clip(), -5, -5),
        (5, 1, Clip(dual=3), 1.2, 0),
    ],
)
def test_ppo_clips_at_published_values(
    ratio: float, advantage: float, clip: Clip, gain: float, gradient: float
) -> None:
    found = gain_and_gradient(ppo_clip, [np.log(ratio)], advantage, clip)

    assert found[0].item() == pytest.approx(gain)
    assert found[1].item() == pytest.approx(gradient)


def test_clip_higher_is_ppo_with_a_wider_upper_range() -> None:
    assert CLIP_HIGHER.function is PPO_CLIP.function
    found = [(clip.low, clip.high) for rule in (CLIP_HIGHER, PPO_CLIP, GSPO)
             for clip in [rule.options()]]  # fmt: skip
    assert found == [(0.2, 0.28), (0.2, 0.2), (3e-4, 4e-4)]


@golden("loss", "gspo")
@pytest.mark.parametrize(
    ("log_ratios", "advantage", "gain", "gradient"),
    [
        ((6e-4, -2e-4, 8e-4, 4e-4), 1, 1.0004, 0),
        ((6e-4, -2e-4, 8e-4, 4e-4), -1, -1.00040008, -0.25010002),
        ((6e-4, -2e-4, 4e-4, 0), 1, 1.00020002, 0.25005001),
    ],
)
def test_gspo_uses_one_ratio_per_sequence(
    log_ratios: tuple[float, ...], advantage: float, gain: float, gradient: float
) -> None:
    gains, gradients = gain_and_gradient(gspo, log_ratios, advantage, GSPO.options())

    # The mean over the sequence's tokens, as seq_mean_token_mean takes it.
    assert gains.mean().item() == pytest.approx(gain, abs=5e-9)
    assert (gradients / 4).tolist() == pytest.approx([gradient] * 4, abs=5e-9)


def test_gspo_does_not_count_observations() -> None:
    lp_BT = torch.tensor([[0.3, 9.0, 0.1]])
    mask_BT = torch.tensor([[True, False, True]])
    costs = gspo(piece(lp_BT, torch.zeros(1, 3), 1.0, mask_BT), Clip(1, 1))

    assert costs.ratio_BT[0, 0].item() == pytest.approx(np.exp(0.2))


@golden("loss", "policy_gradient")
def test_policy_gradient_is_proportional_to_the_advantage() -> None:
    gains, gradients = gain_and_gradient(policy_gradient, [0.5, -0.5], -2.0, NoOptions())

    assert gains.tolist() == [1.0, 3.0]
    assert gradients.tolist() == [-2.0, -2.0]


@pytest.mark.parametrize("name", sorted(LOSSES))
@given(ratios=st.lists(st.floats(-30, 30), min_size=1, max_size=5))
def test_a_zero_advantage_gives_a_zero_gradient(name: str, ratios: list[float]) -> None:
    known = everything(torch.full((1, len(ratios)), -1.0, dtype=torch.float64))
    rule = LOSSES[name]
    gains, gradients = gain_and_gradient(rule.function, ratios, 0.0, rule.options(), **known)

    assert gains.abs().max() == 0
    assert gradients.abs().max() == 0


@pytest.mark.parametrize("name", ["ppo_clip", "gspo"])
@given(
    ratios=st.lists(st.floats(-3, 3), min_size=1, max_size=5),
    advantage=st.sampled_from([-1.0, 1.0]),
)
def test_a_token_reported_as_clipped_gets_no_gradient(
    name: str, ratios: list[float], advantage: float
) -> None:
    lp_BT = torch.tensor([ratios], dtype=torch.float64, requires_grad=True)
    mask_BT = torch.ones(1, len(ratios), dtype=torch.bool)
    costs = LOSSES[name](piece(lp_BT, torch.zeros_like(lp_BT), advantage, mask_BT), Clip())
    costs.cost_BT.sum().backward()

    assert lp_BT.grad is not None
    assert ((lp_BT.grad == 0) == costs.clipped_BT).all()


def test_log_ratios_are_bounded_before_exponentiation() -> None:
    zero = torch.zeros(1, 1)
    costs = ppo_clip(piece(zero + 300, zero, -1.0), Clip())

    assert costs.ratio_BT.item() == pytest.approx(np.exp(20), rel=1e-6)
    far = policy_gradient(piece(zero, zero - 300, 1.0), NoOptions())
    assert far.ratio_BT.isfinite()


@pytest.mark.parametrize(
    ("probabilities", "expected"),
    [([0.25] * 4, 1.386294), ([0.5, 0.25, 0.25], 1.039721), ([1.0, 0.0], 0.0)],
)
def test_entropy_is_over_the_whole_vocabulary(probabilities: list[float], expected: float) -> None:
    log_p_MV = torch.tensor([probabilities], dtype=torch.float64).log()

    assert entropy(log_p_MV).item() == pytest.approx(expected, abs=5e-7)


def test_k3_is_never_negative_and_matches_its_published_value() -> None:
    assert k3(torch.tensor(-1.2), torch.tensor(-1.0)).item() == pytest.approx(0.018731, abs=5e-7)
    assert k3(torch.tensor(-1.0), torch.tensor(-1.0)).item() == 0


@golden(
    "aggregate",
    "token_mean",
    "seq_mean_token_mean",
    "seq_mean_token_sum",
    "seq_mean_token_sum_norm",
)
@pytest.mark.parametrize(
    ("aggregate", "expected"),
    [
        ("token_mean", 6.666667),
        ("seq_mean_token_mean", 8.75),
        ("seq_mean_token_sum", 20),
        ("seq_mean_token_sum_norm", 5),
    ],
)
def test_aggregates_match_published_values(aggregate: str, expected: float) -> None:
    weights = token_weights(aggregate, np.array([4, 2]), norm=4)

    total = sum(w * sum(costs) for w, costs in zip(weights, [(1, 2, 3, 4), (10, 20)], strict=True))
    assert total == pytest.approx(expected, abs=5e-7)


@pytest.mark.parametrize("aggregate", sorted(AGGREGATES))
@given(lengths=st.lists(st.integers(1, 9), min_size=1, max_size=6))
def test_empty_sequences_do_not_change_token_weights(aggregate: str, lengths: list[int]) -> None:
    full = token_weights(aggregate, np.array(lengths), norm=4)
    with_empty = token_weights(aggregate, np.array([0, *lengths, 0]), norm=4)

    assert with_empty[1:-1].tolist() == full.tolist()


def test_unknown_names_are_refused_with_the_nearest_name() -> None:
    with pytest.raises(Refused, match="did you mean 'ppo_clip'"):
        choose("loss", "ppo_klip", LOSSES)
    with pytest.raises(Refused, match="did you mean 'token_mean'"):
        token_weights("token_meen", np.array([1]))
    with pytest.raises(Refused, match="maximum of new tokens"):
        token_weights("seq_mean_token_sum_norm", np.array([1]))
