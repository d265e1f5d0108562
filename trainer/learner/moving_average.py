"""An exponentially weighted moving average of a model's weights, kept in checkpoints."""

import copy
from collections.abc import Mapping

import torch
from torch import nn

from rollcall.schemas.weights import RawTensor
from rollcall.trainer.weights.tensors import exported, raw_of, tensor_of, whole

PLACE = "average"
"""The suffix of the names of its tensors among those of the optimiser."""
TOTAL = f"total/{PLACE}"


class MovingAverage:
    """The average θ̄ of a model; it begins as the model itself with W = 1.

    After each update W' = d·W + 1 and θ̄ ← θ̄·d·W/W' + θ/W'.
    Source: Batch size-invariance for policy optimization, arXiv 2110.00641, §3, and its code.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self.total = 1.0
        self.model = copy.deepcopy(model).requires_grad_(False)

    def update(self, model: nn.Module) -> None:
        """Add the current weights to the average."""
        total = self.decay * self.total + 1
        now = exported(model)
        with torch.no_grad():
            for name, mean in exported(self.model).items():
                if mean.is_floating_point():
                    mean.mul_(self.decay * self.total / total)
                    mean.add_(whole(now[name]), alpha=1 / total)
        self.total = total

    def state(self) -> dict[str, RawTensor]:
        """Return the state for a checkpoint, bit for bit."""
        weights = {f"{name}/{PLACE}": raw_of(t) for name, t in exported(self.model).items()}
        return weights | {TOTAL: raw_of(torch.tensor(self.total, dtype=torch.float64))}

    def load(self, state: Mapping[str, RawTensor], model: nn.Module) -> None:
        """Restore from `state`; use the model's weights if it has no average."""
        now = exported(model)
        known = TOTAL in state
        self.total = tensor_of(state[TOTAL]).item() if known else 1.0
        with torch.no_grad():
            for name, mean in exported(self.model).items():
                mean.copy_(tensor_of(state[f"{name}/{PLACE}"]) if known else whole(now[name]))
