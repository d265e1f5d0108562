"""Importance corrections for the mismatch of engine and trainer: weights of the tokens' costs.

The level of a correction's ratio is a token, or all sampled tokens of a sequence.

- `none`: every weight is 1.
- `tis`: truncated importance sampling.
- `icepop`: two-sided masking: tokens whose ratio trainer/engine is outside a window are left out.
- `mis`: masked importance sampling: ratios in a range are the weights, others are masked.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor, ones_like

from rollcall.schemas.rules import Need, NoOptions, Rule, require
from rollcall.trainer.rules.tokens import Tokens, log_ratio, sampled_mean

LEVELS = ("token", "sequence", "geometric")


def log_ratio_at(level: str, tokens: Tokens) -> Tensor:
    """Return log (old/μ) as [B,T], or [B,1]: its sum over a sequence, or with `geometric` the mean.

    The result has no gradient.
    """
    apart_BT = log_ratio(tokens.old_BT, tokens.mu_BT).detach()
    if level == "token":
        return apart_BT
    mean_B1 = sampled_mean(apart_BT, tokens.mask_BT)
    if level == "geometric":
        return mean_B1
    return log_ratio(mean_B1 * tokens.mask_BT.sum(dim=1, keepdim=True), mean_B1 * 0)


def whole_sequences(options: object) -> bool:
    """Return True if a correction with these options has one ratio per sequence."""
    return getattr(options, "level", "token") != "token"


def within(value: float | None, level: str, ranges: Mapping[str, float]) -> float:
    """Return the given bound, or the level's default."""
    return ranges[level] if value is None else value


def no_correction(tokens: Tokens, options: NoOptions) -> Tensor:
    """w = 1, [B,T]. Ours."""
    del options
    return ones_like(tokens.mu_BT)


NO_CORRECTION = Rule("none", "correction", "ours", no_correction)


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
    frozenset({Need.OWN_OLD}),
)


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
    "icepop",
    "correction",
    "Ring-1T, arXiv 2510.18855, §3",
    icepop,
    Window,
    frozenset({Need.OWN_OLD}),
)


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
    frozenset({Need.OWN_OLD}),
)
