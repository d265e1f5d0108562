"""Advantages over the spread of the whole batch."""

import numpy as np

from rollcall.schemas.rules import NoOptions, Rule
from rollcall.trainer.advantages.spread import whitened
from rollcall.trainer.rewards import Floats, Rewards


def batch_normalised(rewards: Rewards, options: NoOptions) -> Floats:
    """A_i = (R_i − mean_batch) / (std_batch + 1e-4). Ours; a lone trajectory gets 0."""
    del options
    totals_N = rewards.totals_N
    if len(totals_N) < 2:
        return np.zeros_like(totals_N)
    return whitened(totals_N - totals_N[0])


BATCH_NORMALISED = Rule(
    "batch_normalised", "advantage", "ours", batch_normalised, needs=frozenset({"batch"})
)
