"""Rewards of several scorers, each divided by its own spread before they are added."""

import numpy as np

from rollcall.schemas.errors import Refused
from rollcall.schemas.rules import NoOptions, Rule
from rollcall.trainer.advantages.spread import whitened
from rollcall.trainer.rewards import Floats, Rewards, members


def gdpo(rewards: Rewards, options: NoOptions) -> Floats:
    """A = (S − mean_batch) / (std_batch + 1e-4), S = Σ_k w_k (R_k − mean_g R_k) / (std_g + 1e-4).

    K ≥ 2 scorers with their weights; a missing reward counts 0. Unlike a sum of rewards, it tells
    (1, 0) from (0, 1). Source: GDPO, method section. Raises Refused with one scorer.
    """
    del options
    if len(rewards.channels) < 2:
        msg = f"gdpo compares scorers, and there is {len(rewards.channels)}; give a second, or grpo"
        raise Refused(msg)
    sums_N = np.zeros_like(rewards.totals_N)
    for rows in members(rewards.groups_N):
        for scorer, given_N in sorted(rewards.channels.items()):
            group = np.nan_to_num(given_N[rows], nan=0.0)
            sums_N[rows] += rewards.weights.get(scorer, 1.0) * whitened(group - group[0])
    return whitened(sums_N - sums_N[0])


GDPO = Rule(
    "gdpo",
    "advantage",
    "GDPO, method section",
    gdpo,
    needs=frozenset({"batch", "group", "channels"}),
)
