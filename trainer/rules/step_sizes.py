"""Rules for a factor of the scheduled learning rate.

- `scheduled`: the scheduled learning rate, unchanged.
- `ess`: smaller steps for batches with a small effective sample size.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import exp, sqrt

import numpy as np

from rollcall.schemas.rules import Need, NoOptions, Rule, require
from rollcall.trainer.rules.rewards import Floats, Ints


@dataclass(frozen=True, slots=True)
class StepStart:
    """Sums over N trajectories with tokens of our policy, before the first gradient."""

    log_weights_N: Floats
    """Σ_t of lp less μ over a trajectory's sampled tokens, in all of its sequences."""
    lengths_N: Ints


@dataclass(frozen=True, slots=True)
class Pace:
    """The factor of the scheduled learning rate for this step."""

    factor: float = 1.0
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Further metrics of the step."""


StepSize = Callable[..., Pace]
"""A function of (step_start, options) to pace."""


def scheduled(start: StepStart, options: NoOptions) -> Pace:
    """Return the factor 1. Ours."""
    del start, options
    return Pace()


SCHEDULED = Rule("scheduled", "step_size", "ours", scheduled)


LEVELS = ("product", "geometric")


@dataclass(frozen=True, slots=True)
class SampleSize:
    """The options; a batch with a share of `base` or more keeps the full rate."""

    base: float = 1.0
    linear: bool = False
    """True: without the square root."""
    level: str = "product"
    """The ratio of a trajectory: the `product` over tokens, or their `geometric` mean (ours)."""

    def __post_init__(self) -> None:
        require("base", self.base, 0 < self.base <= 1, "give a number in (0, 1]")
        require("level", self.level, self.level in LEVELS, f"use one of {', '.join(LEVELS)}")


def ess(start: StepStart, options: SampleSize) -> Pace:
    """lr·sqrt(min(1, ρ/ρ_base)), ρ = (Σ w)²/(B·Σ w²), w_i = exp(Σ_t (lp − μ)). Source: VCPO, §4."""
    logs_N = start.log_weights_N
    if options.level == "geometric":
        logs_N = logs_N / start.lengths_N
    ratio = effective_share(logs_N)
    share = min(1.0, ratio / options.base)
    return Pace(share if options.linear else sqrt(share), {"ess_ratio": ratio})


def effective_share(logs_N: Floats) -> float:
    """Return ρ of weights given as logarithms: exp(2·lse(l) − lse(2l))/B; 1 if empty."""
    if not len(logs_N):
        return 1.0
    return exp(2 * _lse(logs_N) - _lse(2 * logs_N)) / len(logs_N)


def _lse(logs_N: Floats) -> float:
    most = float(logs_N.max())
    return most + float(np.log(np.exp(logs_N - most).sum()))


ESS = Rule("ess", "step_size", "VCPO, §4", ess, SampleSize, frozenset({Need.PROX}))
