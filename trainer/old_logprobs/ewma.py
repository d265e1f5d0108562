"""Log-probabilities of a moving average of the weights, in place of old weights."""

from rollcall.schemas.rules import Rule
from rollcall.trainer.moving_average import Decay
from rollcall.trainer.tokens import Old, Tokens, needed


def ewma(tokens: Tokens, options: Decay) -> Old:
    """old = log π_θ̄, with θ̄ of `ppo_ewma`.

    Source: Missing Old Logits, approximate route; Batch size-invariance, arXiv 2110.00641, §3.
    """
    del options
    return Old(needed(tokens.ewma_BT, "ewma"))


EWMA = Rule(
    "ewma",
    "old_logprobs",
    "Missing Old Logits; Batch size-invariance, arXiv 2110.00641, §3",
    ewma,
    Decay,
    frozenset({"ewma"}),
)
