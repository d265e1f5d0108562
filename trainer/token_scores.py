"""Log-probabilities and entropies of sampled tokens, with a single copy of the logits.

A hand-written autograd function, because tensors over the vocabulary dominate a step's memory:
log_softmax, its exponential and their gradients need four copies of [U, V]; this keeps the logits
and returns their gradient. U positions before sampled tokens, V vocabulary, M sampled tokens;
several tokens may be sampled after one position.
"""

from typing import Any

import torch
from torch import Tensor

ROWS = 64
"""The number of positions computed at a time, to bound temporary memory."""


def token_scores(
    logits_UV: Tensor, place_M: Tensor, token_M: Tensor, temperature: float
) -> tuple[Tensor, Tensor]:
    """Return lp [M] of tokens after positions, and the entropy [M] there: nats, at T."""
    if logits_UV.dtype in (torch.float16, torch.bfloat16):
        logits_UV = logits_UV.float()
    scores: tuple[Tensor, Tensor] = _TokenScores.apply(logits_UV, place_M, token_M, temperature)
    return scores


class _TokenScores(torch.autograd.Function):  # type: ignore[misc]  # torch is untyped here
    """d lp / d z = onehot − p and d H / d z = −p (log p + H), where z = logits / T."""

    @staticmethod
    def forward(
        ctx: Any, logits_UV: Tensor, place_M: Tensor, token_M: Tensor, temperature: float
    ) -> tuple[Tensor, Tensor]:
        parts = [_normaliser_and_entropy(part / temperature) for part in logits_UV.split(ROWS)]
        lse_U, entropy_U = (torch.cat(values) for values in zip(*parts, strict=True))
        lp_M = logits_UV[place_M, token_M] / temperature - lse_U[place_M]
        ctx.save_for_backward(logits_UV, place_M, token_M, lse_U, entropy_U)
        ctx.temperature = temperature
        return lp_M, entropy_U[place_M]

    @staticmethod
    @torch.autograd.function.once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, by_lp_M: Tensor, by_entropy_M: Tensor) -> tuple[Tensor | None, ...]:
        logits_UV, place_M, token_M, lse_U, entropy_U = ctx.saved_tensors
        by_lp_U = torch.zeros_like(lse_U).index_add(0, place_M, by_lp_M)
        by_entropy_U = torch.zeros_like(lse_U).index_add(0, place_M, by_entropy_M)
        found_UV = torch.empty_like(logits_UV)
        for first in range(0, len(found_UV), ROWS):
            part = slice(first, first + ROWS)
            log_p = (logits_UV[part] / ctx.temperature).sub_(lse_U[part, None])
            p = log_p.exp()
            log_p.clamp_(min=-1e30).add_(entropy_U[part, None]).mul_(by_entropy_U[part, None])
            found_UV[part] = log_p.add_(by_lp_U[part, None]).mul_(p).neg_()
        found_UV.index_put_((place_M, token_M), by_lp_M, accumulate=True)
        return found_UV.div_(ctx.temperature), None, None, None


def _normaliser_and_entropy(z_UV: Tensor) -> tuple[Tensor, Tensor]:
    """Return log Σ exp z and H = lse − Σ p z, [U]; a logit of −inf adds 0."""
    lse_U = z_UV.logsumexp(dim=-1)
    p_UV = (z_UV - lse_U[:, None]).exp_()
    return lse_U, lse_U - p_UV.mul_(z_UV.clamp(min=-1e30)).sum(dim=-1)
