"""The rarer a success in its group, the more it weighs: the gradient of the log success rate."""

from dataclasses import dataclass

import numpy as np

from schemas.rules import Rule
from trainer.advantages.spread import centred
from trainer.rewards import Floats, Rewards, per_group


@dataclass(frozen=True, slots=True)
class Success:
    """What counts as one."""

    above: float = 0.0
    """A reward up to this is a failure, and all failures are the same."""


def success_weighted(rewards: Rewards, options: Success) -> Floats:
    """A_i = (S_i − mean_g S) / mean_g S with S = max(R − above, 0); 0 in a group without success.

    One success among eight weighs 7, eight among eight nothing. Source: ours; for binary rewards
    the expectation is the gradient of log of the group's success rate.
    """

    def weighted(group: Floats) -> Floats:
        earned = np.maximum(group - options.above, 0.0)
        mean = float(earned.mean())
        return np.zeros_like(group) if mean == 0 else centred(earned - earned[0]) / mean

    return per_group(rewards, weighted, shifted=False)


SUCCESS_WEIGHTED = Rule(
    "success_weighted", "advantage", "ours", success_weighted, Success, needs=frozenset({"group"})
)
