"""Exact log-probabilities by interruption: before each update, running rollouts are scored."""

from rollcall.schemas.rules import NoOptions, Rule
from rollcall.trainer.tokens import Old, Tokens, needed, where_known


def interrupt(tokens: Tokens, options: NoOptions) -> Old:
    """old = log π_v of the version v that sampled a token, noted before v was updated; else μ.

    Tokens of the current version are scored at the step's start. No old weights are kept or loaded;
    a token of older weights that arrived after their update is not exact. Source: Missing Old
    Logits, exact routes.
    """
    del options
    fresh_BT = tokens.versions_BT == tokens.version
    noted_BT = needed(tokens.noted_BT, "noted")
    known_BT = needed(tokens.prox_BT, "prox").where(fresh_BT, noted_BT)
    return where_known(known_BT, tokens.mu_BT)


INTERRUPT = Rule(
    "interrupt",
    "old_logprobs",
    "Missing Old Logits, exact routes",
    interrupt,
    needs=frozenset({"noted", "prox"}),
    gives=frozenset({"own_old"}),
)
