"""A batch's gradient, gathered piece by piece in the parameters of a model.

Pieces are summed, never averaged: each token's weight holds every denominator already, so a batch
in pieces gives the gradient of the whole.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor, nn

from schemas.rules import Chosen
from trainer.batch import Batch, MicroBatch
from trainer.config import LearnerConfig
from trainer.forward import forward
from trainer.step_metrics import numbers_per_token
from trainer.tokens import Distil, Loss, StepTokens, Tokens

EXTRA_PASS = frozenset({"prox", "step"})
"""Needs that are met by one forward pass without gradients before the first update: `prox` per
token of a piece, `step` of all tokens of the update at once."""


@dataclass
class Gradient:
    """One update's: `add` the pieces, then read what it came to."""

    model: nn.Module
    config: LearnerConfig
    loss: Chosen[Loss]
    distil: Chosen[Distil]
    step: StepTokens | None = None
    cost: float = 0.0
    _tokens: dict[int, np.ndarray] = field(default_factory=dict)

    def add(self, micro: MicroBatch) -> None:
        """Leave the gradient of a piece in the parameters, beside what is there."""
        said = forward(self.model, micro, self.config.temperature)
        tokens = tokens_of(micro, said.lp_BT, self.step)
        if self.distil.needs("teacher"):
            tokens = replace(tokens, advantage_BT=self.distil(tokens))
        costs = self.loss(tokens)
        cost_BT = costs.cost_BT - micro.entropy_B1 * said.entropy_BT
        cost_M = cost_BT[said.b_M, said.t_M] * micro.weight_B[said.b_M]
        cost = cost_M.sum()
        cost.backward()
        self.cost += float(cost.detach())
        self._tokens |= numbers_per_token(micro, said, costs)

    def numbers(self) -> list[np.ndarray]:
        """Numbers per token of each row that was added, in log order."""
        return [self._tokens[row] for row in sorted(self._tokens)]


def tokens_of(micro: MicroBatch, lp_BT: Tensor, step: StepTokens | None) -> Tokens:
    """What a loss sees of a piece."""
    return Tokens(
        lp_BT,
        micro.behaviour_logprobs_BT,
        micro.behaviour_logprobs_BT,
        micro.advantage_BT,
        micro.mask_BT,
        micro.reward_B,
        micro.versions_BT,
        prox_BT=micro.prox_BT,
        teacher_BT=micro.teacher_BT,
        step=step,
    )


def with_prox(
    batch: Batch, pieces: Iterable[MicroBatch], model: nn.Module, temperature: float
) -> Batch:
    """The batch with what the model thinks of its tokens now: one pass without gradients."""
    rows = list(batch.rows)
    with torch.no_grad():
        for micro in pieces:
            lp_BT = forward(model, micro, temperature).lp_BT.cpu().numpy()
            for b, row in enumerate(micro.rows):
                rows[row] = replace(rows[row], prox=lp_BT[b, : len(rows[row].token_ids)].copy())
    return replace(batch, rows=tuple(rows))


def step_tokens(batch: Batch) -> StepTokens | None:
    """The sampled tokens of an update in log order; None where nobody has looked before it."""
    prox = [row.prox[row.mask] for row in batch.rows if row.prox is not None]
    if not prox:
        return None
    mu_K = _gathered([row.behaviour_logprobs[row.mask] for row in batch.rows])
    owners = [np.full(int(row.mask.sum()), b) for b, row in enumerate(batch.rows)]
    return StepTokens(
        _gathered(prox),
        mu_K,
        mu_K,
        _gathered([row.advantages[row.mask] for row in batch.rows]),
        torch.from_numpy(np.concatenate(owners)),
    )


def _gathered(arrays: list[np.ndarray]) -> Tensor:
    return torch.from_numpy(np.concatenate(arrays).astype(np.float64))
