"""A pull towards the uniform distribution in failed groups, so that every token stays likely."""

from dataclasses import dataclass

import numpy as np

from rollcall.schemas.rules import Rule, require
from rollcall.trainer.rewards import Bonuses, Rewards, failed_groups


@dataclass(frozen=True, slots=True)
class Lifted:
    """The groups, the tokens, and the cost of their distance from the uniform distribution."""

    weight: float = 0.3
    above: float = 0.0
    """A group has failed if none of its rewards is above this."""
    tokens: tuple[int, ...] = ()
    """Ids of the tokens over which the distribution is uniform; none: all of the model's."""
    first: int = 0
    """The number of first tokens of each turn that the cost applies to; 0: all."""

    def __post_init__(self) -> None:
        require("weight", self.weight, self.weight >= 0, "give 0 (off) or such as 0.3")
        ids = isinstance(self.tokens, tuple) and all(
            type(each) is int and each >= 0 for each in self.tokens
        )
        require("tokens", self.tokens, ids, "give a list of token ids, such as [2, 3, 4, 5]")
        twice = len(set(self.tokens)) < len(self.tokens)
        require("tokens", self.tokens, not twice, "give each token id once")
        require("first", self.first, self.first >= 0, "give 0 (all) or such as 1")


def uniform_kl(rewards: Rewards, entropy: float, options: Lifted) -> Bonuses:
    """In a group without a success each token costs weight·KL(U ‖ π), U uniform over `tokens`.

    KL(U ‖ π) = −mean_{v ∈ V} log π(v) − log |V|. Its gradient by a logit is π(v) − U(v): unlike the
    entropy's, −π(v)·(log π(v) + H), it does not vanish with π(v), so it raises tokens that have
    become unlikely. The entropy bonus keeps the learner's own weight everywhere. With `first` = k
    the cost applies to the first k sampled tokens of each turn, which usually decide the action.
    Source: ours.
    """
    uniform_N = np.zeros(len(rewards.totals_N))
    uniform_N[failed_groups(rewards, options.above)] = options.weight
    return Bonuses(np.full(len(rewards.totals_N), entropy), uniform_N, options.first)


UNIFORM_KL = Rule(
    "uniform_kl",
    "exploration",
    "ours",
    uniform_kl,
    Lifted,
    needs=frozenset({"group", "uniform"}),
)
