"""Where nothing works every word is kept within reach, however unlikely it has become."""

from dataclasses import dataclass

import numpy as np

from schemas.rules import Rule, require
from trainer.rewards import Bonuses, Rewards, failed_groups


@dataclass(frozen=True, slots=True)
class Lifted:
    """Which groups, which words, and what their distance from the uniform distribution costs."""

    weight: float = 0.3
    above: float = 0.0
    """A group has failed where no reward of it is above this."""
    tokens: tuple[int, ...] = ()
    """Ids of the words that are to be within reach; none: all that the model has."""
    first: int = 0
    """So many of each turn's first tokens pay; 0: all of them."""

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
    entropy's, −π(v)·(log π(v) + H), it does not vanish with π(v), so it lifts what has been
    forgotten. The entropy of all keeps the learner's own weight. With `first` = k only the first k
    sampled tokens of each turn pay: what decides the answer is explored, how it goes on is not.
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
