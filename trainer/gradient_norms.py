"""Squared gradient norms of single trajectories."""

from dataclasses import replace

import numpy as np
import torch
from torch import nn

from rollcall.trainer.batch import Batch
from rollcall.trainer.extra_pass import Pieces
from rollcall.trainer.forward import forward
from rollcall.trainer.rewards import Floats


def gradient_norms(batch: Batch, pieces: Pieces, model: nn.Module, temperature: float) -> Floats:
    """‖∇ Σ_t log π(token_t)‖² of each trajectory over all parameters, [N].

    The sum over its sampled tokens, in all of its sequences, is not normalised; 0 if there are
    none. Costs one forward and backward pass per trajectory; gradients in the parameters stay
    unchanged.
    """
    parameters = [each for each in model.parameters() if each.requires_grad]
    norms_N = np.zeros(len(batch.lengths_N))
    for number in sorted({row.trajectory for row in batch.rows}):
        own = replace(batch, rows=tuple(r for r in batch.rows if r.trajectory == number))
        total = [torch.zeros_like(each, dtype=torch.float64) for each in parameters]
        for micro in pieces(own):
            lp = forward(model, micro, temperature).lp_BT.sum()
            for sum_, found in zip(total, _gradient(lp, parameters), strict=True):
                if found is not None:
                    sum_ += found
        norms_N[number] = sum(float(each.square().sum()) for each in total)
    return norms_N


def _gradient(
    value: torch.Tensor, parameters: list[nn.Parameter]
) -> tuple[torch.Tensor | None, ...]:
    found: tuple[torch.Tensor | None, ...] = torch.autograd.grad(
        value, parameters, allow_unused=True
    )
    return found
