"""What a loss sees, made by hand."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from rollcall.trainer.rules.tokens import Loss, StepTokens, Tokens


def piece(
    lp_BT: Tensor,
    old_BT: Tensor,
    advantage: float | Tensor,
    mask_BT: Tensor | None = None,
    **more: Any,
) -> Tokens:
    """One advantage for all unless there are several; what the engine reported is `old`."""
    return Tokens(
        lp_BT,
        more.pop("mu_BT", old_BT),
        old_BT,
        torch.as_tensor(advantage, dtype=torch.float64).expand(lp_BT.shape),
        torch.ones_like(lp_BT, dtype=torch.bool) if mask_BT is None else mask_BT,
        more.pop("reward_B", torch.zeros(len(lp_BT), dtype=torch.float64)),
        more.pop("versions_BT", torch.zeros_like(lp_BT, dtype=torch.int64)),
        **more,
    )


def gain_and_gradient(
    loss: Loss, log_ratios: Sequence[float], advantage: float, options: object, **more: Any
) -> tuple[Tensor, Tensor]:
    """J and the gradient of its sum by lp, of one sequence, [T], in float64."""
    old_BT = torch.full((1, len(log_ratios)), -1.0, dtype=torch.float64)
    lp_BT = (old_BT + torch.tensor([log_ratios], dtype=torch.float64)).requires_grad_()
    costs = loss(piece(lp_BT, old_BT, advantage, **more), options)
    (-costs.cost_BT).sum().backward()
    assert lp_BT.grad is not None
    return -costs.cost_BT[0].detach(), lp_BT.grad[0]


def everything(lp_BT: Tensor) -> dict[str, Any]:
    """Whatever a rule may need, all of it as if nothing had changed since the sampling."""
    lp_K = lp_BT.detach().reshape(-1)
    step = StepTokens(lp_K, lp_K, torch.ones_like(lp_K), torch.zeros_like(lp_K))
    return {"prox_BT": lp_BT, "ref_BT": lp_BT, "ewma_BT": lp_BT, "step": step}
