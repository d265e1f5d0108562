"""Masked importance sampling: ratios in a range are the weights, others are masked."""

from dataclasses import dataclass

from torch import Tensor

from rollcall.schemas.rules import Rule, require
from rollcall.trainer.corrections.level import LEVELS, log_ratio_at, within
from rollcall.trainer.tokens import Tokens

LOW = {"token": 0.5, "sequence": 0.1, "geometric": 0.999}
WEIGHTS = ("level", "token", "none")
HIGH = {"token": 2.0, "sequence": 10.0, "geometric": 1.001}


@dataclass(frozen=True, slots=True)
class Rejection:
    """The kept range: [0.5, 2] for tokens, [0.1, 10] for sequences by the product of their
    ratios, [0.999, 1.001] by the geometric mean; `low` and `high` override it.
    """

    level: str = "token"
    low: float | None = None
    high: float | None = None
    veto: float = 1e-4
    """A sequence with one token ratio below this is masked as a whole; 0 is off."""
    weight: str = "level"
    """The weight of kept tokens: `level` is the ratio at the same level, `token` the ratio of each
    token (for rejection of sequences with token weights), `none` is 1 (rejection only)."""

    def __post_init__(self) -> None:
        require("level", self.level, self.level in LEVELS, f"use one of {', '.join(LEVELS)}")
        for key, least, most in (("low", 0.0, 1.0), ("high", 1.0, float("inf"))):
            value = getattr(self, key)
            given = value is None or (isinstance(value, int | float) and least <= value <= most)
            require(key, value, given, f"give a number in [{least:g}, {most:g}]")
        known = self.weight in WEIGHTS
        require("weight", self.weight, known, f"use one of {', '.join(WEIGHTS)}")
        require("veto", self.veto, 0 <= self.veto < 1, "give 0 (off) or a number below 1")


def mis(tokens: Tokens, options: Rejection) -> Tensor:
    """w = k where low ≤ k ≤ high, else 0; k is the ratio exp(old − μ) at its level.

    Source: When Speed Kills Stability, Liu et al. 2025 (masked importance sampling, veto). Equal
    to TRL's `token_mask` and `sequence_mask`, except for the veto.
    """
    ratio_BT = log_ratio_at(options.level, tokens).exp().expand_as(tokens.mu_BT)
    low = within(options.low, options.level, LOW)
    high = within(options.high, options.level, HIGH)
    kept_BT = (ratio_BT >= low) & (ratio_BT <= high)
    token_BT = log_ratio_at("token", tokens).exp()
    far_BT = (token_BT < options.veto) & tokens.mask_BT
    kept_BT = kept_BT & ~far_BT.any(dim=1, keepdim=True)
    weights = {"level": ratio_BT, "token": token_BT, "none": kept_BT.to(tokens.mu_BT.dtype)}
    return weights[options.weight].masked_fill(~kept_BT, 0)


MIS = Rule(
    "mis",
    "correction",
    "When Speed Kills Stability, Liu et al. 2025",
    mis,
    Rejection,
    frozenset({"own_old"}),
)
