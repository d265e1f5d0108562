"""The weights of every version that a token may be of are kept, and score it."""

from schemas.rules import NoOptions, Rule
from trainer.tokens import Old, Tokens, needed, where_known


def snapshot(tokens: Tokens, options: NoOptions) -> Old:
    """old = log π_v of the version v that sampled a token; μ where its weights are gone.

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
