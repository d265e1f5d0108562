"""The plain score-function estimator."""

from rollcall.schemas.rules import NoOptions, Rule
from rollcall.trainer.tokens import Costs, Tokens, log_ratio, nothing_clipped


def policy_gradient(tokens: Tokens, options: NoOptions) -> Costs:
    """J = A·lp, unbiased only on-policy or with a correction.

    Source: REINFORCE, Williams 1992, §4.
    """
    del options
    ratio_BT = log_ratio(tokens.lp_BT, tokens.old_BT).exp()
    return Costs(-tokens.advantage_BT * tokens.lp_BT, ratio_BT, nothing_clipped(tokens.mask_BT))


POLICY_GRADIENT = Rule("policy_gradient", "loss", "REINFORCE, Williams 1992, §4", policy_gradient)
