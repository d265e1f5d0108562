"""Clipping by a bound on the second moment of a step's log-ratios."""

from dataclasses import dataclass
from math import exp, sqrt

import torch

from rollcall.schemas.rules import Rule, require
from rollcall.trainer.losses.clip import Clip, clipped_surrogate
from rollcall.trainer.tokens import Costs, StepTokens, Tokens, log_ratio, needed

LEAST, MOST = 0.05, 21.0


@dataclass(frozen=True, slots=True)
class SecondMoment:
    """The bound on the mean of (μ − lp)² over tokens that move away from the engine."""

    threshold: float = 0.01

    def __post_init__(self) -> None:
        require("threshold", self.threshold, self.threshold > 0, "give a number above 0")


def m2po(tokens: Tokens, moment: SecondMoment) -> Costs:
    """J = min(r·A, clip(r, bounds)·A), r = exp(lp − μ), with bounds of the whole step.

    Source: Prosperity before Collapse, arXiv 2510.01161, §4; tokens are ranked among those that
    violate, and not among all as in one public code.
    """
    low, high = bounds(needed(tokens.step, "step"), moment.threshold)
    ratio_BT = log_ratio(tokens.lp_BT, tokens.mu_BT).exp()
    return clipped_surrogate(ratio_BT, tokens.advantage_BT, Clip(1 - low, high - 1))


def bounds(step: StepTokens, threshold: float) -> tuple[float, float]:
    """Return the range of the ratio without clipping: [e^−c, e^c] within [0.05, 21].

    The largest (μ − lp)² are dropped until the mean of the rest is below the threshold, but at
    least one is kept; c² is the largest kept. Tokens whose ratio moves against their advantage do
    not count.
    """
    apart_K = step.lp_K - step.mu_K
    squares = apart_K[apart_K * step.advantage_K > 0].square().sort().values
    counts = torch.arange(1, len(squares) + 1, dtype=squares.dtype)
    means = squares.cumsum(0) / counts
    if not len(squares) or means[-1] <= threshold:
        return LEAST, MOST
    kept = max(int((means < threshold).sum()), 1)
    c = min(sqrt(float(squares[kept - 1])), 20.0)
    return max(exp(-c), LEAST), min(exp(c), MOST)


M2PO = Rule(
    "m2po",
    "loss",
    "Prosperity before Collapse, arXiv 2510.01161, §4",
    m2po,
    SecondMoment,
    frozenset({"step", "mu"}),
)
