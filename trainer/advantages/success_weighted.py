"""Successes weighted by their rarity in the group: the gradient of the log success rate."""

from dataclasses import dataclass

import numpy as np

from rollcall.schemas.rules import Rule, require
from rollcall.trainer.advantages.spread import centred
from rollcall.trainer.rewards import Floats, Rewards, per_group


@dataclass(frozen=True, slots=True)
class Success:
    """The threshold of a success, and the weight of differences between failures."""

    above: float = 0.0
    """A reward up to this is a failure."""
    shortfall: float = 0.0
    """The weight c of a failure's distance below `above`, relative to others of its group."""

    def __post_init__(self) -> None:
        require(
            "shortfall", self.shortfall, self.shortfall >= 0, "give 0 (off) or more, such as 10"
        )


def success_weighted(rewards: Rewards, options: Success) -> Floats:
    """A_i = (S_i − mean_g S) / mean_g S + c·(F_i − mean_g F), the first 0 without a success.

    S = max(R − above, 0), F = min(R − above, 0). One success among eight weighs 7, eight among
    eight 0; costs of failures, such as for unreadable output, are compared apart. Source: ours;
    for binary rewards the expectation is the gradient of the log of the group's success rate.
    """

    def weighted(group: Floats) -> Floats:
        earned = np.maximum(group - options.above, 0.0)
        lacked = np.minimum(group - options.above, 0.0)
        told = options.shortfall * centred(lacked - lacked[0])
        mean = float(earned.mean())
        return told if mean == 0 else told + centred(earned - earned[0]) / mean

    return per_group(rewards, weighted, shifted=False)


SUCCESS_WEIGHTED = Rule(
    "success_weighted", "advantage", "ours", success_weighted, Success, needs=frozenset({"group"})
)
