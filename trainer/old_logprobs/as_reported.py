"""The engine's reported log-probabilities in place of the trainer's own."""

from rollcall.schemas.rules import NoOptions, Rule
from rollcall.trainer.tokens import Old, Tokens


def as_reported(tokens: Tokens, options: NoOptions) -> Old:
    """old = μ. Ours."""
    del options
    return Old(tokens.mu_BT)


AS_REPORTED = Rule("none", "old_logprobs", "ours", as_reported)
