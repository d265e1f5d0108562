"""A larger entropy bonus for groups without a success."""

from dataclasses import dataclass

import numpy as np

from rollcall.schemas.rules import Rule, require
from rollcall.trainer.rewards import Floats, Rewards, failed_groups


@dataclass(frozen=True, slots=True)
class FailedGroups:
    """The criterion of a failed group, and the entropy coefficient in it."""

    weight: float = 0.05
    above: float = 0.0
    """A group has failed if none of its rewards is above this."""

    def __post_init__(self) -> None:
        require("weight", self.weight, self.weight >= 0, "give 0 or a small number, such as 0.05")


def explore_failed(rewards: Rewards, entropy: float, options: FailedGroups) -> Floats:
    """c_i = weight in a group without a success, else c.

    So an action that is right for few tasks stays likely there until a rollout succeeds with it,
    and no bonus keeps it alive where another action works. Source: ours.
    """
    weights_N = np.full(len(rewards.totals_N), entropy)
    weights_N[failed_groups(rewards, options.above)] = options.weight
    return weights_N


EXPLORE_FAILED = Rule(
    "explore_failed",
    "exploration",
    "ours",
    explore_failed,
    FailedGroups,
    needs=frozenset({"group"}),
)
