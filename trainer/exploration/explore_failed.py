"""Groups that wholly failed explore, groups with a success exploit."""

from dataclasses import dataclass

import numpy as np

from schemas.rules import Rule, require
from trainer.rewards import Floats, Rewards, failed_groups


@dataclass(frozen=True, slots=True)
class FailedGroups:
    """Which those are, and what their entropy is worth."""

    weight: float = 0.05
    above: float = 0.0
    """A group has failed where no reward of it is above this."""

    def __post_init__(self) -> None:
        require("weight", self.weight, self.weight >= 0, "give 0 or a small number, such as 0.05")


def explore_failed(rewards: Rewards, entropy: float, options: FailedGroups) -> Floats:
    """c_i = weight in a group without a success, else c.

    So what is right in one place only is not unlearned there before anybody has found it, and is
    not kept alive where something else works. Source: ours.
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
