"""Half the square of the log-ratio: the only one of the three with the KL's gradient."""

from torch import Tensor

from rollcall.schemas.rules import Rule
from rollcall.trainer.references.kl_penalty import KlPenalty
from rollcall.trainer.tokens import Tokens, log_ratio, needed


def k2(tokens: Tokens, options: KlPenalty) -> Tensor:
    """x²/2, x = ref − lp. Source: Approximating KL Divergence, Schulman 2020."""
    del options
    return log_ratio(needed(tokens.ref_BT, "ref"), tokens.lp_BT).square() / 2


K2 = Rule(
    "k2", "kl", "Approximating KL Divergence, Schulman 2020", k2, KlPenalty, frozenset({"ref"})
)
