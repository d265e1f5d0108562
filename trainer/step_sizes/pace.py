"""What a rule of the step size sees of a batch, and what it gives."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from trainer.rewards import Floats, Ints


@dataclass(frozen=True, slots=True)
class StepStart:
    """N trajectories with tokens of ours, before the first gradient."""

    log_weights_N: Floats
    """Σ_t of lp less μ over its sampled tokens, in all of its sequences."""
    lengths_N: Ints


@dataclass(frozen=True, slots=True)
class Pace:
    """The learning rate of this step is the schedule's times the factor."""

    factor: float = 1.0
    told: Mapping[str, float] = field(default_factory=dict)
    """For the metrics of the step."""


StepSize = Callable[..., Pace]
"""(step_start, options) to pace."""
