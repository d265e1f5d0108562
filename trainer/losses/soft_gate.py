"""A smooth gate in place of a hard clip."""

from dataclasses import dataclass

from torch import full_like

from rollcall.schemas.rules import Rule, require
from rollcall.trainer.tokens import Costs, Tokens, log_ratio, nothing_clipped


@dataclass(frozen=True, slots=True)
class Gates:
    """Temperatures τ of the gate, for A > 0 and for the rest; a higher τ closes it earlier."""

    tau_positive: float = 1.0
    tau_negative: float = 1.05

    def __post_init__(self) -> None:
        for key in ("tau_positive", "tau_negative"):
            require(key, getattr(self, key), getattr(self, key) > 0, "give a number above 0")


def soft_gate(tokens: Tokens, gates: Gates) -> Costs:
    """J = (4/τ)·σ(τ·(r − 1))·A, whose gradient at r = 1 is A. Use it with a mean over sequences.

    Source: Soft Adaptive Policy Optimization, arXiv 2511.20347, §3.
    """
    ratio_BT = log_ratio(tokens.lp_BT, tokens.old_BT).exp()
    rising_BT = tokens.advantage_BT > 0
    tau_BT = full_like(ratio_BT, gates.tau_negative).masked_fill(rising_BT, gates.tau_positive)
    gain_BT = 4 / tau_BT * (tau_BT * (ratio_BT - 1)).sigmoid() * tokens.advantage_BT
    return Costs(-gain_BT, ratio_BT, nothing_clipped(tokens.mask_BT))


SOFT_GATE = Rule(
    "soft_gate", "loss", "Soft Adaptive Policy Optimization, arXiv 2511.20347, §3", soft_gate, Gates
)
