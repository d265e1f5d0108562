"""Leave-one-out advantages: the baseline of each trajectory is the mean of the others."""

from rollcall.schemas.rules import NoOptions, Rule
from rollcall.trainer.advantages.spread import centred
from rollcall.trainer.rewards import Floats, Rewards, per_group


def rloo(rewards: Rewards, options: NoOptions) -> Floats:
    """A_i = R_i − Σ_{j≠i} R_j / (G−1) = (G / (G−1)) (R_i − mean_g).

    Source: Back to Basics, arXiv 2402.14740, §3 (leave one out).
    """
    del options
    return per_group(rewards, lambda r: centred(r) * len(r) / (len(r) - 1))


RLOO = Rule(
    "rloo", "advantage", "Back to Basics, arXiv 2402.14740, §3", rloo, needs=frozenset({"group"})
)
