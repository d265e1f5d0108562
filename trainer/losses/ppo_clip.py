"""PPO's clipped surrogate, with equal or unequal ranges."""

from dataclasses import dataclass

from rollcall.schemas.rules import Rule
from rollcall.trainer.losses.clip import Clip, clipped_surrogate
from rollcall.trainer.tokens import Costs, Tokens, log_ratio


@dataclass(frozen=True, slots=True)
class ClipHigher(Clip):
    """A clip range with more room upwards, so that rare tokens can gain probability."""

    high: float = 0.28


def ppo_clip(tokens: Tokens, clip: Clip) -> Costs:
    """J = min(r·A, clip(r, 1−ε_lo, 1+ε_hi)·A); with dual c and A < 0: J ← max(J, c·A).

    Source: PPO, arXiv 1707.06347, eq. 7; unequal ranges: DAPO, arXiv 2503.14476, §3.1; dual clip:
    arXiv 1912.09729, §4.
    """
    ratio_BT = log_ratio(tokens.lp_BT, tokens.old_BT).exp()
    return clipped_surrogate(ratio_BT, tokens.advantage_BT, clip)


PPO_CLIP = Rule("ppo_clip", "loss", "PPO, arXiv 1707.06347, eq. 7", ppo_clip, Clip)
CLIP_HIGHER = Rule("clip_higher", "loss", "DAPO, arXiv 2503.14476, §3.1", ppo_clip, ClipHigher)
