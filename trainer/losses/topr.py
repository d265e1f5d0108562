"""Tapered REINFORCE: tokens with A ≤ 0 are weighted by their ratio, at most 1."""

from rollcall.schemas.rules import NoOptions, Rule
from rollcall.trainer.tokens import Costs, Tokens, log_ratio, nothing_clipped


def topr(tokens: Tokens, options: NoOptions) -> Costs:
    """J = A·lp where A > 0, else J = sg[min(r, 1)]·A·lp.

    Source: Tapered Off-Policy REINFORCE, arXiv 2503.14286, §3. The sign is that of the
    advantage, the reward less its baseline; the paper's ratio is per trajectory, ours per token, as
    in ROLL.
    """
    del options
    ratio_BT = log_ratio(tokens.lp_BT, tokens.old_BT).exp()
    raised_BT = tokens.advantage_BT > 0
    weight_BT = ratio_BT.detach().clamp(max=1).masked_fill(raised_BT, 1)
    cost_BT = -weight_BT * tokens.advantage_BT * tokens.lp_BT
    return Costs(cost_BT, ratio_BT, nothing_clipped(tokens.mask_BT))


TOPR = Rule("topr", "loss", "Tapered Off-Policy REINFORCE, arXiv 2503.14286, §3", topr)
