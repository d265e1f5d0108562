"""Interpolation between engine and current network by a token's age, without an extra pass."""

from rollcall.schemas.rules import NoOptions, Rule
from rollcall.trainer.tokens import Old, Tokens


def loglinear(tokens: Tokens, options: NoOptions) -> Old:
    """prox ≈ μ + α·(lp − μ), α = (v_prox − v_b)/(v_θ − v_b), per token, without a gradient.

    v_b has sampled the token, v_prox is the version at the step's start, v_θ the one that the
    step makes, so that α is 0 for fresh tokens. Also provides `prox`. Source: AReaL's code.
    """
    del options
    age_BT = (tokens.version - tokens.versions_BT).clamp(min=0).to(tokens.mu_BT.dtype)
    alpha_BT = age_BT / (age_BT + 1)
    return Old(tokens.mu_BT + alpha_BT * (tokens.lp_BT.detach() - tokens.mu_BT))


LOGLINEAR = Rule(
    "loglinear",
    "old_logprobs",
    "AReaL, arXiv 2505.24298, its code",
    loglinear,
    gives=frozenset({"prox"}),
)
