"""Reading and validation of a teacher's scores for the tokens of a rollout."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from rollcall.schemas.messages import ScoredTrajectory
from rollcall.schemas.packed import logprobs_of

TEACHER = "teacher:"
"""The prefix of the names of teacher scorers, unless a recipe gives another."""
LEAST = -1000.0
"""The lowest valid log-probability, in nats."""

Floats32 = NDArray[np.float32]


def teacher_logprobs(
    scored: ScoredTrajectory, sampled: Sequence[NDArray[np.bool_]], scorer: str
) -> list[Floats32] | None:
    """Return a teacher's log-probabilities per sequence, [T]; nan where our policy did not sample.

    `sampled` marks our tokens by sequence, bool [T]; of several scorers whose names begin with
    `scorer` the first is used. None if a sequence with tokens of ours has no scores or invalid
    ones.
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
