"""Penalties for the distance from a frozen reference: estimates of the KL divergence.

- `none`: no penalty.
- `k1`: the plain log-ratio: an unbiased estimate, but its gradient is not that of the KL.
- `k2`: half the square of the log-ratio: the only one of the three with the KL's gradient.
- `k3`: the estimate that is never negative, better for reports than for training.
"""

from dataclasses import dataclass

from torch import Tensor, zeros_like

from rollcall.schemas.rules import Need, NoOptions, Rule, require
from rollcall.trainer.rules.tokens import Tokens, log_ratio, needed
from rollcall.trainer.rules.tokens import k3 as estimate


@dataclass(frozen=True, slots=True)
class KlPenalty:
    """Options of a penalty: `weight` times the estimate is added to each token's cost."""

    weight: float = 0.001
    directory: str = ""
    """Directory of the frozen model; empty: the initial policy."""

    def __post_init__(self) -> None:
        require("weight", self.weight, self.weight > 0, "give a number above 0, or name = 'none'")


def no_reference(tokens: Tokens, options: NoOptions) -> Tensor:
    """0, [B,T]. Ours."""
    del options
    return zeros_like(tokens.mu_BT)


NO_REFERENCE = Rule("none", "kl", "ours", no_reference)


def k1(tokens: Tokens, options: KlPenalty) -> Tensor:
    """−x, x = ref − lp. Source: Approximating KL Divergence, Schulman 2020."""
    del options
    return -log_ratio(needed(tokens.ref_BT, Need.REF), tokens.lp_BT)


K1 = Rule(
    "k1", "kl", "Approximating KL Divergence, Schulman 2020", k1, KlPenalty, frozenset({Need.REF})
)


def k2(tokens: Tokens, options: KlPenalty) -> Tensor:
    """x²/2, x = ref − lp. Source: Approximating KL Divergence, Schulman 2020."""
    del options
    return log_ratio(needed(tokens.ref_BT, Need.REF), tokens.lp_BT).square() / 2


K2 = Rule(
    "k2", "kl", "Approximating KL Divergence, Schulman 2020", k2, KlPenalty, frozenset({Need.REF})
)


def k3(tokens: Tokens, options: KlPenalty) -> Tensor:
    """e^x − x − 1, x = ref − lp. Source: Approximating KL Divergence, Schulman 2020."""
    del options
    return estimate(needed(tokens.ref_BT, Need.REF), tokens.lp_BT)


K3 = Rule(
    "k3", "kl", "Approximating KL Divergence, Schulman 2020", k3, KlPenalty, frozenset({Need.REF})
)
