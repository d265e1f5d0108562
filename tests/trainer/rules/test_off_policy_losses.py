"""Off-policy losses match published values, and excluded tokens take no part."""

from math import exp, log

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from rollcall.schemas.errors import Refused
from rollcall.schemas.rules import NoOptions
from rollcall.trainer.rules.losses import (
    AverageClip,
    Clip,
    DecoupledClip,
    Gates,
    SecondMoment,
    Truncation,
    bounds,
    cispo,
    decoupled_ppo,
    m2po,
    ppo_ewma,
    soft_gate,
    topr,
)
from rollcall.trainer.rules.tokens import StepTokens
from tests.support.golden import golden
from tests.support.token_views import gain_and_gradient, piece


def one(value: float) -> Tensor:
    return torch.tensor([[value]], dtype=torch.float64)


@golden("loss", "cispo")
def test_cispo_keeps_the_gradient_that_clipping_removes() -> None:
    lp_BT = one(-0.5).requires_grad_()
    costs = cispo(piece(lp_BT, one(-0.5 - log(1.5)), 1.0), Truncation())
    (-costs.cost_BT).sum().backward()

    assert -costs.cost_BT.item() == pytest.approx(-0.64)
    assert lp_BT.grad is not None
    assert lp_BT.grad.item() == pytest.approx(1.28)
    assert not costs.clipped_BT.any()


@golden("loss", "decoupled_ppo")
@pytest.mark.parametrize(
    ("advantage", "gain", "gradient"), [(1, 1.465683, 0), (-1, -1.648721, -1.648721)]
)
def test_decoupled_ppo_matches_published_values(
    advantage: float, gain: float, gradient: float
) -> None:
    lp_BT = one(-0.7).requires_grad_()
    view = piece(lp_BT, one(-1.2), advantage, prox_BT=one(-1.0))
    costs = decoupled_ppo(view, DecoupledClip())
    (-costs.cost_BT).sum().backward()

    assert -costs.cost_BT.item() == pytest.approx(gain, abs=5e-7)
    assert lp_BT.grad is not None
    assert lp_BT.grad.item() == pytest.approx(gradient, abs=5e-7)


@pytest.mark.parametrize(
    ("over", "cap", "costs"),
    [
        ("mask", 5.0, (-1.0, 0.0, 0.0)),
        ("clamp", 5.0, (-1.0, -5.0, 0.0)),
        ("mask_sequence", 5.0, (-1.0, -exp(2), 0.0)),
        ("mask_sequence", 2.0, (0.0, 0.0, 0.0)),
        ("mask", 0.0, (-1.0, -exp(2), 0.0)),
    ],
)
def test_a_token_far_off_policy_costs_according_to_its_option(
    over: str, cap: float, costs: tuple[float, ...]
) -> None:
    """exp(prox - mu) is 1 and e^2, its geometric mean e; the last token is not ours."""
    prox_BT = torch.tensor([[-1.0, -1.0, 0.0]], dtype=torch.float64)
    mu_BT = torch.tensor([[-1.0, -3.0, -9.0]], dtype=torch.float64)
    mask_BT = torch.tensor([[True, True, False]])
    view = piece(prox_BT, mu_BT, 1.0, mask_BT, prox_BT=prox_BT)

    found = decoupled_ppo(view, DecoupledClip(cap=cap, over=over))

    assert found.cost_BT[0].tolist() == pytest.approx(list(costs))
    assert found.clipped_BT[0, 2]


def step(apart: list[float], advantages: list[float]) -> StepTokens:
    """Tokens whose lp lies so far above the engine's."""
    mu_K = torch.full((len(apart),), -1.0, dtype=torch.float64)
    apart_K, worth_K = torch.tensor([apart, advantages], dtype=torch.float64)
    return StepTokens(mu_K + apart_K, mu_K, worth_K, torch.zeros(len(apart)))


@golden("loss", "m2po")
@pytest.mark.parametrize("outside", [[], [0.5], [-0.5, 0.4]])
def test_m2po_drops_the_largest_violating_ratios(outside: list[float]) -> None:
    """Where A > 0 a ratio above 1 violates, where A < 0 one below; the others do not count."""
    worth = [1.0, -1, -1, 1, *(-1.0 if apart > 0 else 1.0 for apart in outside)]

    found = bounds(step([0.05, -0.2, -0.1, 0.3, *outside], worth), 0.01)

    assert np.round(found, 6).tolist() == [0.904837, 1.105171]


@pytest.mark.parametrize(
    ("apart", "threshold", "expected"),
    [
        ([0.3, 0.2, 0.1, 0.05], 0.035625 + 1e-9, (0.05, 21)),
        ([0.3, 0.2], 0.05, (exp(-0.2), exp(0.2))),
        ([5.0, 6.0], 0.01, (0.05, 21)),
        ([-1.0], 0.01, (0.05, 21)),
    ],
)
def test_m2po_keeps_one_token_and_stays_within_its_limits(
    apart: list[float], threshold: float, expected: tuple[float, float]
) -> None:
    assert bounds(step(apart, [1.0] * len(apart)), threshold) == pytest.approx(expected)


def test_m2po_uses_the_bounds_of_the_whole_step() -> None:
    view = piece(one(-0.8), one(-1.0), 1.0, step=step([0.3, 0.2, 0.1, 0.05], [1.0] * 4))
    costs = m2po(view, SecondMoment())

    assert -costs.cost_BT.item() == pytest.approx(1.105171)
    assert costs.clipped_BT.item()


@golden("loss", "topr")
@pytest.mark.parametrize(("ratio", "weight"), [(1.5, 1.0), (0.4, 0.4)])
def test_topr_tapers_tokens_with_a_negative_advantage(ratio: float, weight: float) -> None:
    _, lowered = gain_and_gradient(topr, [log(ratio)], -2.0, NoOptions())
    lost = torch.full((1,), -1.0, dtype=torch.float64)
    _, raised = gain_and_gradient(topr, [log(ratio)], 2.0, NoOptions(), reward_B=lost)

    assert lowered.item() == pytest.approx(-2 * weight)
    assert raised.item() == 2


@golden("loss", "soft_gate")
@pytest.mark.parametrize(
    ("ratio", "advantage", "gate"),
    [
        (1, 1, 2), (1.5, 1, 2.489837), (0.5, 1, 1.510163),
        (1, -1, 1.904762), (1.5, -1, 2.393585), (0.5, -1, 1.415938),
    ],
)  # fmt: skip
def test_soft_gates_match_published_values(ratio: float, advantage: float, gate: float) -> None:
    gains, gradients = gain_and_gradient(soft_gate, [log(ratio)], advantage, Gates())

    assert gains.item() == pytest.approx(gate * advantage, abs=5e-7)
    if ratio == 1:
        assert gradients.item() == pytest.approx(advantage)


@golden("loss", "ppo_ewma")
def test_ppo_ewma_is_bounded_around_the_average_at_published_values() -> None:
    """min(2.013753, 1.790190), and no gradient where the bound holds."""
    lp_BT = one(-0.5).requires_grad_()
    costs = ppo_ewma(piece(lp_BT, one(-1.2), 1.0, ewma_BT=one(-0.8)), AverageClip())
    (-costs.cost_BT).sum().backward()

    assert -costs.cost_BT.item() == pytest.approx(1.790190, abs=5e-7)
    assert costs.ratio_BT.item() == pytest.approx(2.013753, abs=5e-7)
    assert costs.clipped_BT.item()
    assert lp_BT.grad is not None
    assert lp_BT.grad.item() == 0
    far = ppo_ewma(piece(one(-0.5), one(-9.0), 1.0, ewma_BT=one(-0.5)), AverageClip())
    assert far.ratio_BT.item() == pytest.approx(100)


@given(
    ratios=st.lists(st.floats(-3, 3), min_size=2, max_size=6),
    over=st.sampled_from(["mask", "mask_sequence"]),
)
def test_a_masked_token_changes_no_other_token(ratios: list[float], over: str) -> None:
    """Its cost is 0, and kept tokens cost the same: nothing is divided by their number."""
    mu_BT = torch.tensor([ratios], dtype=torch.float64).neg() - 5
    prox_BT = torch.full_like(mu_BT, -5.0)
    view = piece(prox_BT, mu_BT, 1.0, prox_BT=prox_BT)
    free = decoupled_ppo(view, DecoupledClip(cap=0)).cost_BT
    kept = decoupled_ppo(view, DecoupledClip(cap=2.0, over=over)).cost_BT

    assert ((kept == free) | (kept == 0)).all()


def test_a_missing_input_of_a_loss_is_reported() -> None:
    with pytest.raises(Refused, match="prox is missing; name it in the `needs`"):
        decoupled_ppo(piece(one(-1), one(-1), 1.0), DecoupledClip())
    with pytest.raises(Refused, match="step is missing"):
        m2po(piece(one(-1), one(-1), 1.0), SecondMoment())


@pytest.mark.parametrize(
    ("options", "key", "value"),
    [
        (Truncation, "low", 1.5), (Truncation, "high", -0.1), (DecoupledClip, "cap", 0.5),
        (DecoupledClip, "over", "drop"), (DecoupledClip, "low", 2.0),
        (SecondMoment, "threshold", 0.0), (Gates, "tau_negative", -1.0), (Clip, "dual", 1.0),
    ],
)  # fmt: skip
def test_invalid_loss_options_are_refused(options: type, key: str, value: object) -> None:
    with pytest.raises(Refused, match=f"{key} is {value!r}; "):
        options(**{key: value})
