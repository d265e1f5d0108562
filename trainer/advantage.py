"""Advantage rules: rewards of a whole batch in, one advantage per trajectory out.

All in float64 on the CPU with rows in log order, so that a re-run gives the same bits. N is the
number of trajectories; a trajectory counts once, however many sequences it has. Rewards are
shifted by one of their number before anything else, which changes no formula and makes the law
exact: equal rewards teach nothing. std divides by n − 1.
"""

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from schemas.errors import Refused
from trainer.plugins import plugin

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
AdvantageRule = Callable[[Floats, Ints, Ints], Floats]
"""(rewards [N], group numbers [N], sampled tokens [N]) to advantages [N]."""

EPSILON = 1e-4


def grpo(rewards: Floats, groups: Ints, lengths: Ints) -> Floats:
    """A_i = (R_i − mean_g) / (std_g + 1e-4). Source: DeepSeekMath, arXiv 2402.03300, §4.1."""
    return _per_group(rewards, groups, whitened)


def dr_grpo(rewards: Floats, groups: Ints, lengths: Ints) -> Floats:
    """A_i = R_i − mean_g, with `aggregate: seq_mean_token_sum_norm`.

    Source: Understanding R1-Zero-Like Training, arXiv 2503.20783, §3.2.
    """
    return _per_group(rewards, groups, centred)


def rloo(rewards: Floats, groups: Ints, lengths: Ints) -> Floats:
    """A_i = R_i − Σ_{j≠i} R_j / (G−1) = (G / (G−1)) (R_i − mean_g).

    Source: Back to Basics, arXiv 2402.14740, §3 (leave one out).
    """
    return _per_group(rewards, groups, lambda r: centred(r) * len(r) / (len(r) - 1))


def batch_normalised(rewards: Floats, groups: Ints, lengths: Ints) -> Floats:
    """A_i = (R_i − mean_batch) / (std_batch + 1e-4). Ours; a lone trajectory gets 0."""
    if len(rewards) < 2:
        return np.zeros_like(rewards)
    return whitened(rewards - rewards[0])


RULES: Mapping[str, AdvantageRule] = {
    "grpo": grpo,
    "dr_grpo": dr_grpo,
    "rloo": rloo,
    "batch_normalised": batch_normalised,
}


def rule(name: str) -> AdvantageRule:
    """The rule of this name, or a user's `module:function`."""
    return plugin("advantage", name, RULES)


def needs_group(name: str) -> bool:
    """Whether a group of one has no baseline; assumed of rules that we do not know."""
    return name != "batch_normalised"


def centred(rewards: Floats) -> Floats:
    middle = float(rewards.mean())
    return rewards - middle


def whitened(rewards: Floats) -> Floats:
    scale = float(rewards.std(ddof=1)) + EPSILON
    return centred(rewards) / scale


def _per_group(rewards: Floats, groups: Ints, advantages_of: Callable[[Floats], Floats]) -> Floats:
    advantages = np.empty_like(rewards)
    for group in np.unique(groups):
        rows = groups == group
        if rows.sum() < 2:
            msg = f"group {group} holds one trajectory and has no baseline; drop it (`singleton`)"
            raise Refused(msg)
        advantages[rows] = advantages_of(rewards[rows] - rewards[rows][0])
    return advantages
