"""Updates of the weights by AdamW with gradient clipping; non-finite updates are skipped."""

from collections.abc import Callable, Mapping
from math import isfinite

import torch
from torch import Tensor, nn

from rollcall.schemas.errors import Unfit
from rollcall.schemas.weights import RawTensor
from rollcall.trainer.config.learner_config import LearnerConfig
from rollcall.trainer.weights.tensors import like, tensor_of, whole

MOMENTS = ("step", "exp_avg", "exp_avg_sq")


class ClippedUpdates:
    """The optimiser of one model, and the number of its skipped updates."""

    def __init__(self, model: nn.Module, config: LearnerConfig) -> None:
        self._model, self._config = model, config
        self.trained = {n: p for n, p in model.named_parameters() if p.requires_grad}
        """The trained parameters, by name."""
        self.optimiser = torch.optim.AdamW(
            self.trained.values(),
            lr=config.lr,
            betas=config.betas,
            weight_decay=config.weight_decay,
        )
        self.skipped = 0
        self.in_a_row = 0
        """The number of consecutive skipped updates."""
        self.touched = False
        """True if weights or moments may have changed since the caller set it to False."""

    def clear(self) -> None:
        """Clear the gradients."""
        self.optimiser.zero_grad(set_to_none=True)

    def apply(
        self, cost: float, lr: float, step: int, before: Callable[[], None]
    ) -> dict[str, float]:
        """Clip the accumulated gradient and update the weights, unless it is not finite.

        `before` is called just before anything changes. Raises Unfit after `max_skipped` updates in
        a row that were not finite, the last at this step.
        """
        parameters = self._model.parameters()
        norm = float(whole(nn.utils.clip_grad_norm_(parameters, self._config.max_grad_norm)))
        skip = not (isfinite(cost) and isfinite(norm) and isfinite(lr))
        if skip:
            self._skip(step)
        else:
            before()
            self.touched = True
            for group in self.optimiser.param_groups:
                group["lr"] = lr
            self.optimiser.step()
            self.in_a_row = 0
        return {"loss": cost, "grad_norm": norm, "lr": lr, "skipped": float(skip)}

    def moments(self, raw: Callable[[Tensor], RawTensor]) -> dict[str, RawTensor]:
        """Return the optimiser state, by parameter and moment."""
        return {
            f"{name}/{moment}": raw(self.optimiser.state[parameter][moment])
            for name, parameter in self.trained.items()
            for moment in MOMENTS
            if parameter in self.optimiser.state
        }

    def load(self, moments: Mapping[str, RawTensor], skipped: int) -> None:
        """Restore the optimiser state and the count of skipped updates."""
        self.optimiser.state.clear()
        for name, parameter in self.trained.items():
            if f"{name}/step" in moments:
                self.optimiser.state[parameter] = {
                    moment: value if moment == "step" else like(parameter, value)
                    for moment in MOMENTS
                    for value in (tensor_of(moments[f"{name}/{moment}"]),)
                }
        self.skipped = skipped

    def _skip(self, step: int) -> None:
        self.skipped += 1
        self.in_a_row += 1
        if self.in_a_row >= self._config.max_skipped:
            msg = (
                f"{self.in_a_row} steps in a row had no finite loss and gradient, the "
                f"last at step {step}; lower lr or max_grad_norm, or look for broken "
                "log-probabilities in the samples; the weights are those before these steps"
            )
            raise Unfit(msg)
