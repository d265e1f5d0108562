"""An entropy bonus that keeps the policy's entropy at a target."""

from dataclasses import dataclass

import numpy as np

from rollcall.schemas.rules import Rule, require
from rollcall.trainer.rewards import Floats, Rewards


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
    needs=frozenset({"batch", "history"}),
)
