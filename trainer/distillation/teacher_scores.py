"""What a teacher gave for the tokens of a rollout: read, and checked at the door."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from schemas.messages import ScoredTrajectory
from schemas.packed import logprobs_of

TEACHER = "teacher:"
"""What the name of a teacher's scorer begins with, unless a recipe names another."""
LEAST = -1000.0
"""In nats; what a teacher finds less likely it was never meant to score."""

Floats32 = NDArray[np.float32]


def teacher_logprobs(
    scored: ScoredTrajectory, sampled: Sequence[NDArray[np.bool_]], scorer: str
) -> list[Floats32] | None:
    """For each sequence what a teacher gave, [T]; nan where our policy did not sample.

    `sampled` are our tokens by sequence, bool [T]; of several scorers whose names begin with
    `scorer` the first counts. None where a sequence with tokens of ours has no scores, or
    impossible ones.
    """
    known: dict[int, Floats32] = {}
    for each in scored.token_scores:
        if each.scorer.startswith(scorer):
            known.setdefault(each.sequence, logprobs_of(each.scores))
    found = [_of_one(ours, known.get(number)) for number, ours in enumerate(sampled)]
    whole = [each for each in found if each is not None]
    return whole if len(whole) == len(found) else None


def _of_one(sampled: NDArray[np.bool_], scores: Floats32 | None) -> Floats32 | None:
    if not sampled.any():
        return np.full(len(sampled), np.nan, np.float32)
    if scores is None or len(scores) != len(sampled):
        return None
    ours = scores[sampled]
    if not ((ours <= 1e-3) & (ours >= LEAST)).all():
        return None
    return np.where(sampled, scores, np.float32(np.nan)).astype(np.float32)
