"""All that a learner is, so that it goes on bit for bit."""

from collections.abc import Mapping
from dataclasses import dataclass

from schemas.weights import RawTensor


@dataclass(frozen=True, slots=True)
class LearnerState:
    """Its weights, its optimiser's moments, and what it draws from, at one step."""

    step: int
    version: int
    skipped: int
    """Updates that changed nothing, since they were not finite."""
    weights: Mapping[str, RawTensor]
    optimiser: Mapping[str, RawTensor]
    rng: Mapping[str, RawTensor]
