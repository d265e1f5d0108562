"""Clipped importance sampling: the weight is bounded, and every token keeps a gradient."""

from dataclasses import dataclass

from rollcall.schemas.rules import Rule, require
from rollcall.trainer.tokens import Costs, Tokens, log_ratio, nothing_clipped


@dataclass(frozen=True, slots=True)
class Truncation:
    """Bounds [1 − low, 1 + high] of the ratio as a weight; `low` 1 is no lower bound."""

    low: float = 1.0
    high: float = 0.28

    def __post_init__(self) -> None:
        require("low", self.low, 0 <= self.low <= 1, "give a number in [0, 1]")
        require("high", self.high, self.high >= 0, "give a number of at least 0")


def cispo(tokens: Tokens, bounds: Truncation) -> Costs:
    """J = sg[clip(r, 1−ε_lo, 1+ε_hi)]·A·lp, so that a rare token keeps the gradient that PPO drops.

    Source: MiniMax-M1, arXiv 2506.13585, §3.1, eq. 4-5; no upper bound is printed there, 0.28 is
    ours.
    """
    ratio_BT = log_ratio(tokens.lp_BT, tokens.old_BT).exp()
    weight_BT = ratio_BT.detach().clamp(1 - bounds.low, 1 + bounds.high)
    cost_BT = -weight_BT * tokens.advantage_BT * tokens.lp_BT
    return Costs(cost_BT, ratio_BT, nothing_clipped(tokens.mask_BT))


CISPO = Rule("cispo", "loss", "MiniMax-M1, arXiv 2506.13585, §3.1", cispo, Truncation)
