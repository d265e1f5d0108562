"""The level of a correction's ratio: per token, or over all sampled tokens of a sequence."""

from collections.abc import Mapping

from torch import Tensor

from rollcall.trainer.tokens import Tokens, log_ratio, sampled_mean

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
