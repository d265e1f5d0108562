"""Medians in place of means, so that an outlier does not change the baseline of others."""

from dataclasses import dataclass

import numpy as np

from rollcall.schemas.rules import Rule, require
from rollcall.trainer.rewards import Advantages, Floats, Rewards, members

EPSILON = 1e-3


@dataclass(frozen=True, slots=True)
class MedianScale:
    """Bound and scale of the quotients."""

    bound: float = 10.0
    """The largest absolute value of an advantage."""
    rescale: bool = False
    """True: multiply each by (members of its group / members whose advantage is not 0)."""

    def __post_init__(self) -> None:
        require("bound", self.bound, self.bound > 0, "give a number above 0")


def mc_grpo(rewards: Rewards, options: MedianScale) -> Advantages:
    """A_i = (R_i − median_g) / (MAD_g + 1e-3), MAD_g = median_g |R − median_g|.

    The median rollout, the first in the log among equals, is left out of the update; give groups an
    odd size. Where the MAD is 0 (most rewards are equal) the scale is 1, and advantages are clipped
    to `bound`. Source: MC-GRPO, method section; the last two rules are ours.
    """
    values_N = np.empty_like(rewards.totals_N)
    keep_N = np.ones(len(values_N), dtype=np.bool_)
    for rows in members(rewards.groups_N):
        group = rewards.totals_N[rows]
        middle = lower_median(group)
        away = group - middle
        spread = lower_median(np.abs(away))
        found = np.clip(away / (spread + EPSILON if spread else 1.0), -options.bound, options.bound)
        if options.rescale and found.any():
            found = found * len(found) / np.count_nonzero(found)
        values_N[rows] = found
        keep_N[np.flatnonzero(rows)[np.argmax(group == middle)]] = False
    return Advantages(values_N, keep_N=keep_N)


def lower_median(values: Floats) -> float:
    """The middle value, the lower one of two."""
    return float(np.sort(values)[(len(values) - 1) // 2])


MC_GRPO = Rule(
    "mc_grpo",
    "advantage",
    "MC-GRPO, method section; scale where the MAD is 0: ours",
    mc_grpo,
    MedianScale,
    needs=frozenset({"group"}),
)
