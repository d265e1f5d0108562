"""Truncated importance sampling."""

from dataclasses import dataclass

from torch import Tensor

from rollcall.schemas.rules import Rule, require
from rollcall.trainer.corrections.level import LEVELS, log_ratio_at
from rollcall.trainer.tokens import Tokens


@dataclass(frozen=True, slots=True)
class Cap:
    """The weight is at most `cap`; the level is a token or its whole sequence."""

    cap: float = 2.0
    level: str = "token"

    def __post_init__(self) -> None:
        require("cap", self.cap, self.cap >= 1, "give 1 or more, such as 2")
        require("level", self.level, self.level in LEVELS, f"use one of {', '.join(LEVELS)}")


def tis(tokens: Tokens, options: Cap) -> Tensor:
    """w = min(exp(old − μ), C), without a gradient.

    Source: Your Efficient RL Framework Secretly Brings You Off-Policy RL Training, Yao et al. 2025.
    """
    weight_BT = log_ratio_at(options.level, tokens).exp().clamp(max=options.cap)
    return weight_BT.expand_as(tokens.mu_BT)


TIS = Rule(
    "tis",
    "correction",
    "Your Efficient RL Framework Secretly Brings You Off-Policy RL, Yao et al. 2025",
    tis,
    Cap,
    frozenset({"own_old"}),
)
