"""PPO with a trust region around a moving average of the weights."""

from dataclasses import dataclass
from math import log, log1p

from rollcall.schemas.rules import Rule, require
from rollcall.trainer.moving_average import Decay
from rollcall.trainer.tokens import LOG_RATIO_LIMIT, Costs, Tokens, needed


@dataclass(frozen=True, slots=True)
class AverageClip(Decay):
    """The clip range around the average; the ratio to the engine is at most `cap`."""

    low: float = 0.2
    high: float = 0.2
    cap: float = 100.0

    def __post_init__(self) -> None:
        Decay.__post_init__(self)
        require("low", self.low, 0 <= self.low < 1, "give a number in [0, 1)")
        require("high", self.high, self.high >= 0, "give a number of at least 0")
        require("cap", self.cap, self.cap >= 1, "give 1 or more, such as 100")


def ppo_ewma(tokens: Tokens, clip: AverageClip) -> Costs:
    """J = min(A·exp(lp − μ'), A·exp(clip(lp − E, ln(1−ε_lo), ln(1+ε_hi)) + E − μ')).

    E = log π_θ̄ and μ' = max(μ, sg[lp] − ln c). Source: Batch size-invariance for policy
    optimization, arXiv 2110.00641, §3, and its code.
    """
    lp_BT, ewma_BT = tokens.lp_BT, needed(tokens.ewma_BT, "ewma")
    base_BT = tokens.mu_BT.maximum(lp_BT.detach() - log(clip.cap))
    ratio_BT = (lp_BT - base_BT).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()
    low = log1p(-clip.low)
    near_BT = (lp_BT - ewma_BT).clamp(low, log1p(clip.high)) + ewma_BT - base_BT
    free_BT = ratio_BT * tokens.advantage_BT
    bound_BT = near_BT.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp() * tokens.advantage_BT
    return Costs(-free_BT.minimum(bound_BT), ratio_BT, bound_BT < free_BT)


PPO_EWMA = Rule(
    "ppo_ewma",
    "loss",
    "Batch size-invariance, arXiv 2110.00641, §3",
    ppo_ewma,
    AverageClip,
    frozenset({"ewma", "mu"}),
)
