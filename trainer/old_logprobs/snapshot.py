"""Exact log-probabilities from kept weights of every version that sampled tokens."""

from rollcall.schemas.rules import NoOptions, Rule
from rollcall.trainer.tokens import Old, Tokens, needed, where_known


def snapshot(tokens: Tokens, options: NoOptions) -> Old:
    """old = log π_v of the version v that sampled a token; μ if its weights are gone.

    Source: Missing Old Logits, exact routes.
    """
    del options
    return where_known(needed(tokens.snapshot_BT, "snapshot"), tokens.mu_BT)


SNAPSHOT = Rule(
    "snapshot",
    "old_logprobs",
    "Missing Old Logits, exact routes",
    snapshot,
    needs=frozenset({"snapshot"}),
    gives=frozenset({"own_old"}),
)
