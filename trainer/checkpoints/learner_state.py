"""The complete state of a learner, from which it resumes bit for bit."""

from collections.abc import Mapping
from dataclasses import dataclass

from rollcall.schemas.weights import RawTensor


@dataclass(frozen=True, slots=True)
class LearnerState:
    """Weights, optimiser state and random state at one step."""

    step: int
    version: int
    skipped: int
    """The number of updates that were skipped because they were not finite."""
    weights: Mapping[str, RawTensor]
    optimiser: Mapping[str, RawTensor]
    rng: Mapping[str, RawTensor]
