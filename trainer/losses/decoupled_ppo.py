"""PPO with a trust region around the policy at the step's start, for older data."""

from dataclasses import dataclass

from rollcall.schemas.rules import Rule, require
from rollcall.trainer.losses.clip import Clip, clipped_surrogate
from rollcall.trainer.tokens import Costs, Tokens, log_ratio, needed, sampled_mean

OVER = ("mask", "clamp", "mask_sequence")


@dataclass(frozen=True, slots=True)
class DecoupledClip(Clip):
    """A clip around `prox`, and a bound on the ratio of `prox` to the engine."""

    cap: float = 5.0
    """The largest ratio of `prox` to μ; 0 is off."""
    over: str = "mask"
    """Beyond the cap: mask or clamp the token; or mask the sequence by its geometric mean."""

    def __post_init__(self) -> None:
        Clip.__post_init__(self)
        require("cap", self.cap, self.cap == 0 or self.cap >= 1, "give 0 (off) or 1 and more")
        require("over", self.over, self.over in OVER, f"use one of {', '.join(OVER)}")


def decoupled_ppo(tokens: Tokens, clip: DecoupledClip) -> Costs:
    """J = w·min(r·A, clip(r)·A), r = exp(lp − prox), w = sg[exp(prox − μ)], no more than `cap`.

    A masked token has cost 0, and no denominator changes. Source: AReaL, arXiv 2505.24298,
    §5.2; the bound on w is from its code.
    """
    prox_BT = needed(tokens.prox_BT, "prox")
    behind_BT = log_ratio(prox_BT, tokens.mu_BT)
    weight_BT = behind_BT.exp()
    masked_BT = ~tokens.mask_BT
    if clip.cap and clip.over == "clamp":
        weight_BT = weight_BT.clamp(max=clip.cap)
    elif clip.cap:
        mean = clip.over == "mask_sequence"
        far_BT = sampled_mean(behind_BT, tokens.mask_BT).exp() if mean else weight_BT
        masked_BT = masked_BT | (far_BT > clip.cap)
    costs = clipped_surrogate(
        log_ratio(tokens.lp_BT, prox_BT).exp(), tokens.advantage_BT, clip
    )  # fmt: skip
    cost_BT = (weight_BT * costs.cost_BT).masked_fill(masked_BT, 0)
    return Costs(cost_BT, costs.ratio_BT, costs.clipped_BT | masked_BT)


DECOUPLED_PPO = Rule(
    "decoupled_ppo",
    "loss",
    "AReaL, arXiv 2505.24298, §5.2",
    decoupled_ppo,
    DecoupledClip,
    frozenset({"prox", "mu"}),
)
