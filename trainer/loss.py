"""Losses, and how per-token losses become one number.

Shapes: B sequences, T tokens; N trajectories. A loss maps log-probabilities to a cost
ℓ[b,t] = −J[b,t] per token, mask-1 tokens only; weights that already hold every denominator turn
costs into a scalar by one sum, so a batch in pieces gives the gradient of the whole. Denominators
count tokens before any masking of a loss. `lp` is log π_θ now, `old` what the engine reported,
r = exp(lp − old) with the log-ratio clamped to ±20.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import inf

import numpy as np
from torch import Tensor, zeros_like

from schemas.errors import Refused
from trainer.advantage import Floats, Ints
from trainer.plugins import plugin

LOG_RATIO_LIMIT = 20.0


@dataclass(frozen=True, slots=True)
class Clip:
    """How far a ratio may move: [1 − low, 1 + high]; `dual` > 1 bounds it where A < 0, 0 is off."""

    low: float = 0.2
    high: float = 0.2
    dual: float = 0.0


@dataclass(frozen=True, slots=True)
class Costs:
    """What a loss gives for each token; values outside the mask mean nothing."""

    cost_BT: Tensor
    ratio_BT: Tensor
    clipped_BT: Tensor
    """bool: tokens whose gradient the clip has taken away."""


Loss = Callable[[Tensor, Tensor, Tensor, Tensor, Clip], Costs]
"""(lp [B,T], old [B,T], advantage [B], mask [B,T], clip) to costs."""


def policy_gradient(
    lp_BT: Tensor, old_BT: Tensor, advantage_B: Tensor, mask_BT: Tensor, clip: Clip
) -> Costs:
    """J = A·lp, right only on-policy. Source: REINFORCE, Williams 1992, §4."""
    gain_BT = advantage_B[:, None] * lp_BT
    return Costs(-gain_BT, log_ratio(lp_BT, old_BT).exp(), zeros_like(mask_BT))


def ppo_clip(
    lp_BT: Tensor, old_BT: Tensor, advantage_B: Tensor, mask_BT: Tensor, clip: Clip
) -> Costs:
    """J = min(r·A, clip(r, 1−ε_lo, 1+ε_hi)·A); with dual c and A < 0: J ← max(J, c·A).

    Source: PPO, arXiv 1707.06347, eq. 7; unequal ranges: DAPO, arXiv 2503.14476, §3.1; dual clip:
    arXiv 1912.09729, §4.
    """
    return clipped_surrogate(log_ratio(lp_BT, old_BT).exp(), advantage_B, clip)


def gspo(lp_BT: Tensor, old_BT: Tensor, advantage_B: Tensor, mask_BT: Tensor, clip: Clip) -> Costs:
    """J_i = min(s_i·A, clip(s_i)·A), s_i = exp((1/n_i) Σ_t m·(lp − old)), in the token form
    s_i·exp(lp − sg[lp]), so that each token carries the sequence's ratio and its own gradient.

    One row is one sequence: a trajectory of several has one ratio for each. A gradient only
    flows where the whole sequence is inside the clip. Source: GSPO, arXiv 2507.18071, §4.1-4.3.
    """
    mask = mask_BT.to(lp_BT.dtype)
    n_B1 = mask.sum(dim=1, keepdim=True).clamp(min=1)
    log_s_B1 = (log_ratio(lp_BT, old_BT) * mask).sum(dim=1, keepdim=True) / n_B1
    ratio_BT = (log_s_B1.detach() + lp_BT - lp_BT.detach()).exp()
    return clipped_surrogate(ratio_BT, advantage_B, clip)


def clipped_surrogate(ratio_BT: Tensor, advantage_B: Tensor, clip: Clip) -> Costs:
    """−min(r·A, clip(r)·A), bounded below by c·A where A < 0 if there is a dual clip c."""
    advantage_B1 = advantage_B[:, None]
    free_BT = ratio_BT * advantage_B1
    bound_BT = ratio_BT.clamp(1 - clip.low, 1 + clip.high) * advantage_B1
    gain_BT = free_BT.minimum(bound_BT)
    clipped_BT = bound_BT < free_BT
    if clip.dual:
        floor_B1 = (clip.dual * advantage_B1).where(advantage_B1 < 0, -inf)
        clipped_BT = clipped_BT | (gain_BT < floor_B1)
        gain_BT = gain_BT.maximum(floor_B1)
    return Costs(-gain_BT, ratio_BT, clipped_BT)


def log_ratio(lp_BT: Tensor, old_BT: Tensor) -> Tensor:
    return (lp_BT - old_BT).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)


LOSSES: Mapping[str, Loss] = {
    "policy_gradient": policy_gradient,
    "ppo_clip": ppo_clip,
    "clip_higher": ppo_clip,
    "gspo": gspo,
}
CLIPS: Mapping[str, Clip] = {"clip_higher": Clip(0.2, 0.28), "gspo": Clip(3e-4, 4e-4)}


def loss(name: str) -> Loss:
    """The loss of this name, or a user's `module:function`."""
    return plugin("loss", name, LOSSES)


def default_clip(name: str) -> Clip:
    """The range that goes with a loss; PPO's 0.2 / 0.2 where nothing else is known."""
    return CLIPS.get(name, Clip())


def entropy(log_softmax_MV: Tensor) -> Tensor:
    """H = −Σ_v p·log p over the full vocabulary, [M], nats; a −inf log-probability adds 0."""
    return -(log_softmax_MV.exp() * log_softmax_MV.clamp(min=-1e30)).sum(dim=-1)


def k3(lp: Tensor, old: Tensor) -> Tensor:
    """e^x − x − 1 with x = lp − old: estimates KL(old ‖ now) on tokens that old has sampled.

    Source: Approximating KL Divergence, Schulman 2020 (k3).
    """
    x = log_ratio(lp, old)
    return x.exp() - x - 1


def token_mean(lengths_N: Ints, norm: int) -> Floats:
    """Σ_i Σ_t ℓ / Σ_i n_i. Source: DAPO, arXiv 2503.14476, §3.3."""
    return np.full(len(lengths_N), 1.0 / max(lengths_N.sum(), 1))


def seq_mean_token_mean(lengths_N: Ints, norm: int) -> Floats:
    """mean_i (Σ_t ℓ / n_i). Source: DeepSeekMath, arXiv 2402.03300, eq. 3."""
    return 1.0 / (np.maximum(lengths_N, 1) * _sequences(lengths_N))


def seq_mean_token_sum(lengths_N: Ints, norm: int) -> Floats:
    """mean_i Σ_t ℓ. Source: Back to Basics, arXiv 2402.14740, §3."""
    return np.full(len(lengths_N), 1.0 / _sequences(lengths_N))


def seq_mean_token_sum_norm(lengths_N: Ints, norm: int) -> Floats:
    """mean_i Σ_t ℓ / L, L a constant of the run, never a batch's width.

    Source: Understanding R1-Zero-Like Training, arXiv 2503.20783, §3.2.
    """
    if norm < 1:
        msg = f"aggregate seq_mean_token_sum_norm needs aggregate_norm >= 1, found {norm}; set it "
        raise Refused(msg + "to the run's maximum of new tokens")
    return np.full(len(lengths_N), 1.0 / (norm * _sequences(lengths_N)))


Aggregate = Callable[[Ints, int], Floats]
AGGREGATES: Mapping[str, Aggregate] = {
    "token_mean": token_mean,
    "seq_mean_token_mean": seq_mean_token_mean,
    "seq_mean_token_sum": seq_mean_token_sum,
    "seq_mean_token_sum_norm": seq_mean_token_sum_norm,
}


def token_weights(aggregate: str, lengths_N: Ints, norm: int = 0) -> Floats:
    """What each token's cost of trajectory i is multiplied by, so that the loss is one sum.

    Trajectories without a sampled token do not count, neither above nor below the line.
    """
    return plugin("aggregate", aggregate, AGGREGATES)(lengths_N, norm)


def _sequences(lengths_N: Ints) -> int:
    return max(int((lengths_N > 0).sum()), 1)
