"""Two-sided masking: tokens whose ratio trainer/engine is outside a window are left out."""

from dataclasses import dataclass

from torch import Tensor

from rollcall.schemas.rules import Rule, require
from rollcall.trainer.corrections.level import log_ratio_at
from rollcall.trainer.tokens import Tokens


@dataclass(frozen=True, slots=True)
class Window:
    """The window of ratios that are kept, both ends included."""

    low: float = 0.5
    high: float = 5.0

    def __post_init__(self) -> None:
        require("low", self.low, 0 <= self.low <= 1, "give a number in [0, 1]")
        require("high", self.high, self.high >= 1, "give 1 or more")


def icepop(tokens: Tokens, window: Window) -> Tensor:
    """w = k where α ≤ k ≤ β, else 0; k = exp(old − μ). Source: Ring-1T, arXiv 2510.18855, §3."""
    k_BT = log_ratio_at("token", tokens).exp()
    inside_BT = (k_BT >= window.low) & (k_BT <= window.high)
    return k_BT.masked_fill(~inside_BT, 0)


ICEPOP = Rule(
    "icepop", "correction", "Ring-1T, arXiv 2510.18855, §3", icepop, Window, frozenset({"own_old"})
)
