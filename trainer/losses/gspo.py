"""Group sequence policy optimisation: one ratio for a whole sequence."""

from dataclasses import dataclass

from rollcall.schemas.rules import Rule
from rollcall.trainer.losses.clip import Clip, clipped_surrogate
from rollcall.trainer.tokens import Costs, Tokens, log_ratio, sampled_mean


@dataclass(frozen=True, slots=True)
class SequenceClip(Clip):
    """The clip range of a mean over tokens, which is narrow."""

    low: float = 3e-4
    high: float = 4e-4


def gspo(tokens: Tokens, clip: Clip) -> Costs:
    """J_i = min(s_i·A, clip(s_i)·A), s_i = exp((1/n_i) Σ_t m·(lp − old)), in the token form
    s_i·exp(lp − sg[lp]), so that each token carries the sequence's ratio and its own gradient.

    One row is one sequence: a trajectory of several has one ratio for each. A gradient only
    flows where the whole sequence is inside the clip. Source: GSPO, arXiv 2507.18071, §4.1-4.3.
    """
    lp_BT = tokens.lp_BT
    log_s_B1 = sampled_mean(log_ratio(lp_BT, tokens.old_BT), tokens.mask_BT)
    ratio_BT = (log_s_B1.detach() + lp_BT - lp_BT.detach()).exp()
    return clipped_surrogate(ratio_BT, tokens.advantage_BT, clip)


GSPO = Rule(
    "gspo",
    "loss",
    "GSPO, arXiv 2507.18071, §4.1-4.3",
    gspo,
    SequenceClip,
    needs=frozenset({"sequence"}),
    aggregate="seq_mean_token_mean",
)
