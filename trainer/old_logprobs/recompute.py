"""Log-probabilities from one pass over the batch before it is trained on."""

from rollcall.schemas.rules import NoOptions, Rule
from rollcall.trainer.tokens import Old, Tokens, needed


def recompute(tokens: Tokens, options: NoOptions) -> Old:
    """old = prox, the trainer's network at the step's start.

    Exact for tokens of the current version; for older tokens the ratio to μ also contains
    staleness. Source: verl's decoupled mode; HybridFlow, arXiv 2409.19256.
    """
    del options
    return Old(needed(tokens.prox_BT, "prox"), tokens.versions_BT == tokens.version)


RECOMPUTE = Rule(
    "recompute",
    "old_logprobs",
    "HybridFlow, arXiv 2409.19256, and verl",
    recompute,
    needs=frozenset({"prox"}),
    gives=frozenset({"own_old"}),
)
