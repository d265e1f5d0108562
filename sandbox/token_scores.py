"""Scores of single tokens, which a teacher or a process reward model gives beside its reward.

They are stored beside the rewards in `trajectories.scored`, float32, one for each token of a
sequence. numpy is imported only when there are scores, so naming scorers does not need it.
"""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from rollcall.schemas.messages import TokenScores, Trajectory

if TYPE_CHECKING:
    import numpy as np


class PerToken(NamedTuple):
    """A reward with a score for each token of some sequences, which a scorer may return."""

    value: float
    tokens: Mapping[int, Iterable[float]]
    """Scores by index of the sequence, one for each token, prompt and observations included."""
    reason: str = ""


def packed_scores(
    scorer: str, tokens: Mapping[int, Iterable[float]], trajectory: Trajectory
) -> tuple[TokenScores, ...]:
    """Pack scores by sequence. Raises ValueError if they are not one finite number per token."""
    import numpy as np

    from rollcall.schemas.packed import LOGPROBS

    sequences = trajectory.sequences or ()
    found = []
    for number in sorted(tokens):
        if not 0 <= number < len(sequences):
            msg = f"it scored sequence {number}, but there are {len(sequences)}"
            raise ValueError(msg)
        scores = _array(tokens[number])
        expected = len(sequences[number].loss_mask)
        if scores.shape != (expected,):
            msg = f"it gave {scores.size} scores for the {expected} tokens of sequence {number}"
            raise ValueError(msg)
        if not np.isfinite(scores).all():
            at = int(np.flatnonzero(~np.isfinite(scores))[0])
            msg = f"it gave token {at} of sequence {number} the score {scores[at]}"
            raise ValueError(msg)
        found.append(TokenScores(scorer, number, scores.astype(LOGPROBS).tobytes()))
    return tuple(found)


def _array(scores: Iterable[float]) -> "np.ndarray[tuple[int, ...], np.dtype[np.float32]]":
    """Convert scores to float32 [T]; values beyond its range become infinite."""
    import numpy as np

    listed = scores if isinstance(scores, np.ndarray) else list(scores)
    with np.errstate(over="ignore"):
        return np.asarray(listed, np.float64).astype(np.float32)
