"""Every loss has the gradient of its formula, by finite differences in float64.

What a loss treats as a constant is held at the point where the gradient is taken.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import exp, log

import pytest
import torch

from rollcall.trainer.rules.catalogue import LOSSES
from rollcall.trainer.rules.tokens import StepTokens
from tests.support.token_views import piece

STEP = 1e-6


@dataclass(frozen=True)
class Place:
    """One token: the values that stay constant while lp moves."""

    lp: float
    """Where the gradient is taken."""
    mu: float
    prox: float
    ewma: float
    advantage: float
    reward: float
    sequence: float
    """The mean of lp - mu over the sequence."""


def clipped(ratio: float, advantage: float, low: float, high: float) -> float:
    return min(ratio * advantage, max(min(ratio, high), low) * advantage)


def ppo(high: float) -> Callable[[float, Place], float]:
    return lambda lp, at: clipped(exp(lp - at.mu), at.advantage, 0.8, high)


def gspo(lp: float, at: Place) -> float:
    ratio = exp(at.sequence + lp - at.lp)
    return clipped(ratio, at.advantage, 1 - 3e-4, 1 + 4e-4)


def decoupled_ppo(lp: float, at: Place) -> float:
    weight = exp(at.prox - at.mu)
    return weight * clipped(exp(lp - at.prox), at.advantage, 0.8, 1.2) * (weight <= 5)


def topr(lp: float, at: Place) -> float:
    return at.advantage * lp * (1 if at.advantage > 0 else min(exp(at.lp - at.mu), 1))


def ppo_ewma(lp: float, at: Place) -> float:
    base = max(at.mu, at.lp - log(100))
    near = max(min(lp - at.ewma, log(1.2)), log(0.8)) + at.ewma - base
    return min(at.advantage * exp(lp - base), at.advantage * exp(near))


def soft_gate(lp: float, at: Place) -> float:
    tau = 1.0 if at.advantage > 0 else 1.05
    return 4 / tau / (1 + exp(-tau * (exp(lp - at.mu) - 1))) * at.advantage


GAINS: dict[str, Callable[[float, Place], float]] = {
    "policy_gradient": lambda lp, at: at.advantage * lp,
    "ppo_clip": ppo(1.2),
    "clip_higher": ppo(1.28),
    "gspo": gspo,
    "cispo": lambda lp, at: min(exp(at.lp - at.mu), 1.28) * at.advantage * lp,
    "decoupled_ppo": decoupled_ppo,
    # With the one violating token of the step at 0.2: see `step`.
    "m2po": lambda lp, at: clipped(exp(lp - at.mu), at.advantage, exp(-0.2), exp(0.2)),
    "topr": topr,
    "soft_gate": soft_gate,
    "ppo_ewma": ppo_ewma,
}

ROWS = [
    # log-ratios of a sequence, its advantage and reward
    ([0.31, -0.12, 0.05, -0.4], 1.3, 1.0),
    ([0.31, -0.12, 0.05, -0.4], -0.7, 0.0),
    ([3e-4, -1e-4, 2e-4, 1e-4], 0.9, 0.0),
]


@pytest.mark.parametrize("name", sorted(LOSSES))
def test_every_loss_has_the_gradient_of_its_formula(name: str) -> None:
    gain = GAINS[name]
    for ratios, advantage, reward in ROWS:
        mu = [-1.0 - 0.1 * t for t in range(len(ratios))]
        lp = [m + r for m, r in zip(mu, ratios, strict=True)]
        prox, ewma = [m + 0.11 for m in mu], [m - 0.07 for m in mu]
        mean = sum(ratios) / len(ratios)
        places = [
            Place(*each, advantage, reward, mean) for each in zip(lp, mu, prox, ewma, strict=True)
        ]
        found, gradient = _autograd(name, places)
        for at, j, slope in zip(places, found, gradient, strict=True):
            difference = (gain(at.lp + STEP, at) - gain(at.lp - STEP, at)) / (2 * STEP)
            assert j == pytest.approx(gain(at.lp, at), rel=1e-9, abs=1e-12)
            assert slope == pytest.approx(difference, rel=1e-6, abs=1e-9)


def _autograd(name: str, places: list[Place]) -> tuple[list[float], list[float]]:
    def row(values: list[float]) -> torch.Tensor:
        return torch.tensor([values], dtype=torch.float64)

    lp_BT = row([at.lp for at in places]).requires_grad_()
    view = piece(
        lp_BT,
        row([at.mu for at in places]),
        places[0].advantage,
        reward_B=torch.tensor([places[0].reward], dtype=torch.float64),
        prox_BT=row([at.prox for at in places]),
        ewma_BT=row([at.ewma for at in places]),
        step=step(),
    )
    costs = LOSSES[name](view, LOSSES[name].options())
    (-costs.cost_BT).sum().backward()
    assert lp_BT.grad is not None
    return (-costs.cost_BT[0]).tolist(), lp_BT.grad[0].tolist()


def step() -> StepTokens:
    """One token violates, by more than any threshold: the bounds are its own."""
    mu_K = torch.tensor([-1.0], dtype=torch.float64)
    return StepTokens(mu_K + 0.2, mu_K, torch.ones(1), torch.zeros(1))
