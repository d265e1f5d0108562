"""What a loss sees of a piece of a batch, and what it gives: one frozen view each.

B sequences, T tokens; K sampled tokens of a whole optimiser step. All log-probabilities are in
nats, and 0 where the mask is 0.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from schemas.errors import Refused

X = TypeVar("X")
LOG_RATIO_LIMIT = 20.0


@dataclass(frozen=True, slots=True)
class StepTokens:
    """The sampled tokens of a whole optimiser step in log order, [K], before its first gradient.

    For rules whose bounds are statistics of the batch: they are the same for every piece of it.
    """

    lp_K: Tensor
    mu_K: Tensor
    advantage_K: Tensor
    sequence_K: Tensor
    """Which row of the batch a token belongs to."""


@dataclass(frozen=True, slots=True)
class Tokens:
    """One piece: what is not chosen by any rule's `needs` is None and was not computed."""

    lp_BT: Tensor
    """log π_θ now; the only one with a gradient."""
    mu_BT: Tensor
    """What the engine reported when it sampled."""
    old_BT: Tensor
    """The trainer's own network at sampling time, as far as it is known; else μ."""
    advantage_BT: Tensor
    mask_BT: Tensor
    """bool: sampled by our policy."""
    reward_B: Tensor
    versions_BT: Tensor
    """Of the weights that sampled; -1 where nothing was."""
    exact_BT: Tensor | None = None
    """bool: where `old` really is the trainer's own network when it sampled; None is nowhere."""
    version: int = 0
    """Of the weights at the step's start."""
    prox_BT: Tensor | None = None
    """The trainer at the step's start."""
    ref_BT: Tensor | None = None
    """A frozen reference."""
    ewma_BT: Tensor | None = None
    """The moving average of the weights."""
    snapshot_BT: Tensor | None = None
    """The weights that sampled a token; nan where they are gone."""
    noted_BT: Tensor | None = None
    """The weights that sampled a token, as they said before they were changed; nan where nobody
    has asked them."""
    teacher_BT: Tensor | None = None
    """What a teacher thinks of these tokens; nan where it said nothing."""
    step: StepTokens | None = None


@dataclass(frozen=True, slots=True)
class Costs:
    """What a loss gives for each token; values outside the mask mean nothing."""

    cost_BT: Tensor
    ratio_BT: Tensor
    clipped_BT: Tensor
    """bool: tokens whose gradient the loss has taken away."""


Loss = Callable[..., Costs]
"""(tokens, options) to costs; a user's function without options takes the tokens alone."""


@dataclass(frozen=True, slots=True)
class Old:
    """What is taken for the trainer's own network at sampling time."""

    old_BT: Tensor
    exact_BT: Tensor | None = None
    """bool: where it really is; None is nowhere."""


def where_known(known_BT: Tensor, mu_BT: Tensor) -> Old:
    """What is known, and exact there; where that is nan, what the engine reported."""
    gone_BT = known_BT.isnan()
    return Old(known_BT.where(~gone_BT, mu_BT), ~gone_BT)


OldLogprobs = Callable[..., Old]
"""(tokens, options) to `old`; the tokens hold μ in its place."""

Correction = Callable[..., Tensor]
"""(tokens, options) to what each token's cost weighs, [B,T], without a gradient; 0 masks it."""

KlEstimate = Callable[..., Tensor]
"""(tokens, options) to an estimate of the KL to the reference on each token, [B,T]."""

Distil = Callable[..., Tensor]
"""(tokens, options) to the advantages [B,T] that the loss is to see."""


def log_ratio(lp_BT: Tensor, old_BT: Tensor) -> Tensor:
    """lp − old within ±20, so that its exponential stays finite."""
    return (lp_BT - old_BT).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)


def entropy(log_softmax_MV: Tensor) -> Tensor:
    """H = −Σ_v p·log p over the full vocabulary, [M], nats; a −inf log-probability adds 0."""
    return -(log_softmax_MV.exp() * log_softmax_MV.clamp(min=-1e30)).sum(dim=-1)


def k3(lp: Tensor, old: Tensor) -> Tensor:
    """e^x − x − 1 with x = lp − old: estimates KL(old ‖ now) on tokens that old has sampled.

    Source: Approximating KL Divergence, Schulman 2020 (k3).
    """
    x = log_ratio(lp, old)
    return x.exp() - x - 1


def sampled_mean(value_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """The mean over each sequence's sampled tokens, [B, 1]; 0 where there are none."""
    mask = mask_BT.to(value_BT.dtype)
    n_B1 = mask.sum(dim=1, keepdim=True).clamp(min=1)
    return (value_BT * mask).sum(dim=1, keepdim=True) / n_B1


def needed(value: X | None, name: str) -> X:
    """What a rule has named among its `needs`; raises Refused where nobody has computed it."""
    if value is None:
        msg = f"{name} is missing; name it in the `needs` of the rule that looks at it"
        raise Refused(msg)
    return value


def nothing_clipped(mask_BT: Tensor) -> Tensor:
    return torch.zeros_like(mask_BT)
