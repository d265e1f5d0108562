"""The input and the result of step-size rules."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from rollcall.trainer.rewards import Floats, Ints


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
    told: Mapping[str, float] = field(default_factory=dict)
    """Further metrics of the step."""


StepSize = Callable[..., Pace]
"""A function of (step_start, options) to pace."""
