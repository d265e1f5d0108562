"""The estimate that is never negative, better for reports than for training."""

from torch import Tensor

from rollcall.schemas.rules import Rule
from rollcall.trainer.references.kl_penalty import KlPenalty
from rollcall.trainer.tokens import Tokens, needed
from rollcall.trainer.tokens import k3 as estimate


def k3(tokens: Tokens, options: KlPenalty) -> Tensor:
    """e^x − x − 1, x = ref − lp. Source: Approximating KL Divergence, Schulman 2020."""
    del options
    return estimate(needed(tokens.ref_BT, "ref"), tokens.lp_BT)


K3 = Rule(
    "k3", "kl", "Approximating KL Divergence, Schulman 2020", k3, KlPenalty, frozenset({"ref"})
)
