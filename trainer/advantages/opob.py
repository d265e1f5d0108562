"""The baseline of least variance off-policy: weighted by squared gradient norms."""

from dataclasses import dataclass

import numpy as np

from rollcall.schemas.rules import Rule, require
from rollcall.trainer.advantages.spread import EPSILON
from rollcall.trainer.rewards import Bools, Floats, Rewards, members
from rollcall.trainer.tokens import needed

SCOPES = ("group", "batch")
CENTRES = ("mean", "median")


@dataclass(frozen=True, slots=True)
class Baseline:
    """The scope and the form of the baseline."""

    scope: str = "group"
    """Trajectories of one `group`, or of the whole `batch`."""
    centre: str = "mean"
    """Weighted `mean` or `median`; the median is robust to one trajectory with a huge gradient."""
    over_length: bool = False
    """Divide weights by the square of the length, so that long answers do not set the baseline."""
    over_std: bool = False
    """Divide advantages by the standard deviation of the rewards."""

    def __post_init__(self) -> None:
        require("scope", self.scope, self.scope in SCOPES, f"use one of {', '.join(SCOPES)}")
        require("centre", self.centre, self.centre in CENTRES, f"use one of {', '.join(CENTRES)}")

    @property
    def needs(self) -> frozenset[str]:
        """The set of trajectories that each one is compared with."""
        return frozenset({self.scope})


def opob(rewards: Rewards, options: Baseline) -> Floats:
    """A_i = R_i − b, b = Σ w_i²·‖∇log π(τ_i)‖²·R_i / Σ w_i²·‖∇log π(τ_i)‖².

    w_i = π(τ_i)/μ(τ_i) at the step's start, uncapped; where all weights are 0, b is the plain mean.
    Source: VCPO, optimal off-policy baseline; the median is the lower one.
    """
    logs_N = needed(rewards.log_weights_N, "prox")
    norms_N = needed(rewards.gradient_norms_N, "norms")
    if options.over_length:
        norms_N = norms_N / np.maximum(rewards.lengths_N, 1) ** 2
    advantages_N = np.zeros_like(rewards.totals_N)
    for rows in _compared(rewards, options.scope):
        # A common factor of the weights changes no baseline, and the largest keeps them finite.
        weights = np.exp(2 * (logs_N[rows] - logs_N[rows].max())) * norms_N[rows]
        shifted = rewards.totals_N[rows] - rewards.totals_N[rows][0]
        centre = weighted_median if options.centre == "median" else weighted_mean
        advantages_N[rows] = shifted - centre(shifted, weights)
        if options.over_std and len(shifted) > 1:
            advantages_N[rows] /= float(shifted.std(ddof=1)) + EPSILON
    return advantages_N


def weighted_mean(values: Floats, weights: Floats) -> float:
    """Σ w·v / Σ w; the plain mean where all weights are 0."""
    total = float(weights.sum())
    return float((weights * values).sum()) / total if total > 0 else float(values.mean())


def weighted_median(values: Floats, weights: Floats) -> float:
    """The lowest value at or below which half of the weight lies."""
    order = np.argsort(values, kind="stable")
    given = weights if weights.sum() > 0 else np.ones_like(weights)
    reached = np.cumsum(given[order])
    return float(values[order][np.searchsorted(reached, reached[-1] / 2)])


def _compared(rewards: Rewards, scope: str) -> list[Bools]:
    if scope == "group":
        return members(rewards.groups_N)
    return [np.ones(len(rewards.totals_N), dtype=np.bool_)]


OPOB = Rule(
    "opob",
    "advantage",
    "VCPO, optimal off-policy baseline",
    opob,
    Baseline,
    frozenset({"norms", "prox"}),
)
