"""The plain log-ratio: an unbiased estimate, but its gradient is not that of the KL."""

from torch import Tensor

from rollcall.schemas.rules import Rule
from rollcall.trainer.references.kl_penalty import KlPenalty
from rollcall.trainer.tokens import Tokens, log_ratio, needed


def k1(tokens: Tokens, options: KlPenalty) -> Tensor:
    """−x, x = ref − lp. Source: Approximating KL Divergence, Schulman 2020."""
    del options
    return -log_ratio(needed(tokens.ref_BT, "ref"), tokens.lp_BT)


K1 = Rule(
    "k1", "kl", "Approximating KL Divergence, Schulman 2020", k1, KlPenalty, frozenset({"ref"})
)
