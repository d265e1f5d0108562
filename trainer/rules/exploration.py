"""Exploration rules: from the rewards of a batch to entropy coefficients.

- `even`: the same entropy bonus for all trajectories.
- `explore_failed`: a larger entropy bonus for groups without a success.
- `entropy_target`: an entropy bonus that keeps the policy's entropy at a target.
- `uniform_kl`: a pull towards the uniform distribution in failed groups, so that every token stays
  likely.
"""

from dataclasses import dataclass

import numpy as np

from rollcall.schemas.rules import Need, NoOptions, Rule, require
from rollcall.trainer.rules.rewards import Bonuses, Floats, Rewards, failed_groups


def even(rewards: Rewards, entropy: float, options: NoOptions) -> Floats:
    """c_i = c. Source: entropy regularisation, Williams and Peng 1991."""
    del options
    return np.full(len(rewards.totals_N), entropy)


EVEN = Rule("even", "exploration", "Williams and Peng 1991", even)


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
    needs=frozenset({Need.GROUP}),
)


@dataclass(frozen=True, slots=True)
class Target:
    """The target entropy, and the rate of change of the coefficient."""

    target: float = 0.2
    """Nats per token."""
    change: float = 0.005
    """Δ: the increase of the weight after a step below the target, the decrease after one above."""
    most: float = 1.0
    """The largest weight."""

    def __post_init__(self) -> None:
        require("target", self.target, self.target > 0, "give nats a token above 0, such as 0.2")
        require("change", self.change, self.change > 0, "give a small number, such as 0.005")
        require("most", self.most, self.most > 0, "give a number above 0, such as 1")

    def after(self, weight: float, entropy: float) -> float:
        """Return the weight after a step with this mean entropy: c + Δ or c − Δ, at least 0.

        An entropy that is not finite changes nothing.
        """
        if not np.isfinite(entropy) or entropy == self.target:
            return weight
        change = self.change if entropy < self.target else -self.change
        return min(max(weight + change, 0.0), self.most)


def entropy_target(rewards: Rewards, entropy: float, options: Target) -> Floats:
    """c_i = c_k where the entropy was at most the target in the step before, else 0.

    `entropy` is c_k: c_0 is the learner's own weight, and each step changes it by `Target.after`.
    The entropy is that of the previous step, so no extra pass is needed. Source:
    Skywork-OR1, arXiv 2505.22312, adaptive entropy control.
    """
    above = rewards.entropy_before > options.target
    return np.full(len(rewards.totals_N), 0.0 if above else entropy)


ENTROPY_TARGET = Rule(
    "entropy_target",
    "exploration",
    "Skywork-OR1, arXiv 2505.22312, adaptive entropy control",
    entropy_target,
    Target,
    needs=frozenset({Need.BATCH, Need.HISTORY}),
)


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
    needs=frozenset({Need.GROUP, Need.UNIFORM}),
)
