"""The inputs and results of losses and other rules per token.

B sequences, T tokens; K sampled tokens of a whole optimiser step. All log-probabilities are in
nats, and 0 where the mask is 0.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from rollcall.schemas.errors import Refused
from rollcall.schemas.rules import Need

X = TypeVar("X")
LOG_RATIO_LIMIT = 20.0


@dataclass(frozen=True, slots=True)
class StepTokens:
    """The sampled tokens of a whole optimiser step in log order, [K], before its first gradient.

    Used by rules whose bounds are statistics of the batch, equal for all of its pieces.
    """

    lp_K: Tensor
    mu_K: Tensor
    advantage_K: Tensor
    sequence_K: Tensor
    """The row of the batch that each token belongs to."""


@dataclass(frozen=True, slots=True)
class Tokens:
    """The tokens of one piece; fields that no rule's `needs` names are None."""

    lp_BT: Tensor
    """log π_θ of the current weights; the only field with a gradient."""
    mu_BT: Tensor
    """Log-probabilities that the engine reported when it sampled."""
    old_BT: Tensor
    """Log-probabilities of the trainer's own network at sampling time, if known; else μ."""
    advantage_BT: Tensor
    mask_BT: Tensor
    """bool: True for tokens that our policy sampled."""
    reward_B: Tensor
    versions_BT: Tensor
    """Versions of the weights that sampled each token; -1 where none did."""
    exact_BT: Tensor | None = None
    """bool: True where `old` is exact, from the trainer's own network; None: nowhere."""
    version: int = 0
    """The version of the weights at the step's start."""
    prox_BT: Tensor | None = None
    """Log-probabilities of the trainer at the step's start."""
    ref_BT: Tensor | None = None
    """Log-probabilities of the frozen reference."""
    ewma_BT: Tensor | None = None
    """Log-probabilities of the moving average of the weights."""
    snapshot_BT: Tensor | None = None
    """Log-probabilities of the weights that sampled a token; nan if they are gone."""
    noted_BT: Tensor | None = None
    """Log-probabilities of the weights that sampled a token, noted before their update; nan where
    none were noted."""
    teacher_BT: Tensor | None = None
    """A teacher's log-probabilities; nan where it gave none."""
    step: StepTokens | None = None


@dataclass(frozen=True, slots=True)
class Costs:
    """The result of a loss per token; values outside the mask are ignored."""

    cost_BT: Tensor
    ratio_BT: Tensor
    clipped_BT: Tensor
    """bool: tokens whose gradient the loss removes by clipping."""


Loss = Callable[..., Costs]
"""A function of (tokens, options) to costs; without options it takes the tokens alone."""


@dataclass(frozen=True, slots=True)
class Old:
    """Log-probabilities taken for those of the trainer's own network at sampling time."""

    old_BT: Tensor
    exact_BT: Tensor | None = None
    """bool: True where they are exact; None: nowhere."""


def where_known(known_BT: Tensor, mu_BT: Tensor) -> Old:
    """Return the known values as exact ones, and the engine's where they are nan."""
    gone_BT = known_BT.isnan()
    return Old(known_BT.where(~gone_BT, mu_BT), ~gone_BT)


OldLogprobs = Callable[..., Old]
"""A function of (tokens, options) to `old`; in its input `old_BT` is μ."""

Correction = Callable[..., Tensor]
"""A function of (tokens, options) to weights of costs, [B,T], without a gradient; 0 masks."""

KlEstimate = Callable[..., Tensor]
"""A function of (tokens, options) to an estimate of the KL to the reference, [B,T]."""

Distil = Callable[..., Tensor]
"""A function of (tokens, options) to the advantages for the loss, [B,T]."""


def log_ratio(lp_BT: Tensor, old_BT: Tensor) -> Tensor:
    """Return lp − old clamped to ±20, so that its exponential stays finite."""
    return (lp_BT - old_BT).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)


def entropy(log_softmax_MV: Tensor) -> Tensor:
    """H = −Σ_v p·log p over the full vocabulary, [M], nats; a −inf log-probability adds 0."""
    return -(log_softmax_MV.exp() * log_softmax_MV.clamp(min=-1e30)).sum(dim=-1)


def k3(lp: Tensor, old: Tensor) -> Tensor:
    """e^x − x − 1 with x = lp − old: an estimate of KL(old ‖ now) on tokens sampled by old.

    Source: Approximating KL Divergence, Schulman 2020 (k3).
    """
    x = log_ratio(lp, old)
    return x.exp() - x - 1


def sampled_mean(value_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """Return the mean over each sequence's sampled tokens, [B, 1]; 0 if there are none."""
    mask = mask_BT.to(value_BT.dtype)
    n_B1 = mask.sum(dim=1, keepdim=True).clamp(min=1)
    return (value_BT * mask).sum(dim=1, keepdim=True) / n_B1


def needed(value: X | None, name: Need) -> X:
    """Return a value that a rule needs. Raises Refused if it was not computed."""
    if value is None:
        msg = f"{name} is missing; name it in the `needs` of the rule that looks at it"
        raise Refused(msg)
    return value


def nothing_clipped(mask_BT: Tensor) -> Tensor:
    return torch.zeros_like(mask_BT)
