"""Updates of the weights by AdamW: gradients, clipping and metrics; non-finite ones are skipped."""

from collections.abc import Callable, Mapping, Sequence
from math import isfinite
from statistics import fmean

import numpy as np
import torch
from torch import Tensor, nn

from rollcall.schemas.errors import Unfit
from rollcall.schemas.weights import RawTensor
from rollcall.trainer.batch.rows import Batch
from rollcall.trainer.checkpoints.learner_state import LearnerState
from rollcall.trainer.config.learner_config import LearnerConfig
from rollcall.trainer.learner.auxiliary_models import AuxiliaryModels
from rollcall.trainer.learner.gradient import Gradient, step_tokens, uniform_tokens_of
from rollcall.trainer.learner.scoring_pass import step_start
from rollcall.trainer.learner.snapshot import Snapshot
from rollcall.trainer.learner.step_metrics import batch_metrics, generation_gap, token_metrics
from rollcall.trainer.learner.streaming import Streaming
from rollcall.trainer.learner.work_share import WorkShare
from rollcall.trainer.rules.step_sizes import Pace
from rollcall.trainer.weights.tensors import like, tensor_of, whole

MOMENTS = ("step", "exp_avg", "exp_avg_sq")


class ClippedUpdates:
    """The optimiser of one model, and the number of its skipped updates."""

    def __init__(
        self, model: nn.Module, config: LearnerConfig, auxiliary: AuxiliaryModels, share: WorkShare
    ) -> None:
        self._model, self._config, self._settings = model, config, config.optimiser
        self._auxiliary, self._share = auxiliary, share
        self._objective, self._step_size = config.rules.objective, config.rules.step_size
        vocabulary = int(model.config.vocab_size)
        self._uniform_tokens = uniform_tokens_of(config.rules.exploration, vocabulary)
        self.trained = {n: p for n, p in model.named_parameters() if p.requires_grad}
        """The trained parameters, by name."""
        self.optimiser = torch.optim.AdamW(
            self.trained.values(),
            lr=self._settings.lr,
            betas=self._settings.betas,
            weight_decay=self._settings.weight_decay,
        )
        self.skipped = 0
        self.in_a_row = 0
        """The number of consecutive skipped updates."""
        self.touched = False
        """True if weights or moments may have changed since the caller set it to False."""
        self.snapshot: Snapshot[LearnerState] | None = None
        """The open snapshot of the state, which is completed before anything changes."""

    def clear(self) -> None:
        """Clear the gradients."""
        self.optimiser.zero_grad(set_to_none=True)

    def update(
        self, batch: Batch, parts: Sequence[Batch], version: int, step: int
    ) -> dict[str, float]:
        """Update the weights, once per part of the batch; return the metrics of the step.

        Raises Unfit after `max_skipped` updates in a row that were not finite.
        """
        pace: Pace = self._step_size(step_start(batch))
        lr = self._config.lr_at(step) * pace.factor
        known = {**batch_metrics(batch, version), **batch.metrics, **pace.metrics}
        updates: list[dict[str, float]] = []
        tokens: list[np.ndarray] = []
        for number, part in enumerate(parts, 1):
            self.clear()
            gradient = self.add(part, version)
            if not updates:  # before the first update the weights are those of the newest tokens
                known |= generation_gap(part, gradient.numbers(), version)
            tokens += gradient.numbers()
            if number == len(parts):  # may fail, so it comes before the last update
                known |= token_metrics(tokens, gradient.metric_names)
            updates.append(self._apply(gradient.cost, lr, step))
        means = {key: fmean(one[key] for one in updates) for key in updates[0]}
        return known | means | self._share.metrics()

    def finish(self, streaming: Streaming, version: int, step: int) -> dict[str, float]:
        """Divide the summed gradient of a streamed step, and update the weights like `update`."""
        batch = streaming.batch()
        pace: Pace = self._step_size(step_start(batch))
        for parameter in self._model.parameters():
            if parameter.grad is not None:
                parameter.grad.div_(streaming.count)
        known = streaming.metrics(batch, version, pace.metrics)
        lr = self._config.lr_at(step) * pace.factor
        update = self._apply(streaming.cost / streaming.count, lr, step)
        return known | update | self._share.metrics()

    def add(self, batch: Batch, version: int) -> Gradient:
        """Add the gradient of a batch to that in the parameters; return its sums and metrics."""
        batch = self._auxiliary.before_update(batch)
        gradient = Gradient(
            self._model,
            self._config,
            self._objective,
            version,
            step_tokens(batch),
            self._uniform_tokens,
        )
        for micro in self._share.pieces(batch):
            gradient.add(micro)
        self._share.join_gradient(gradient)
        return gradient

    def settle(self) -> None:
        """Complete the open snapshot before its state changes."""
        if self.snapshot is not None:
            self.snapshot.settle()
            self.snapshot = None

    def _apply(self, cost: float, lr: float, step: int) -> dict[str, float]:
        """Clip the accumulated gradient and update the weights, unless it is not finite."""
        parameters = self._model.parameters()
        norm = float(whole(nn.utils.clip_grad_norm_(parameters, self._settings.max_grad_norm)))
        skip = not (isfinite(cost) and isfinite(norm) and isfinite(lr))
        if skip:
            self._skip(step)
        else:
            self.settle()
            self.touched = True
            for group in self.optimiser.param_groups:
                group["lr"] = lr
            self.optimiser.step()
            self.in_a_row = 0
            self._auxiliary.after_update()
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
        if self.in_a_row >= self._settings.max_skipped:
            msg = (
                f"{self.in_a_row} steps in a row had no finite loss and gradient, the "
                f"last at step {step}; lower lr or max_grad_norm, or look for broken "
                "log-probabilities in the samples; the weights are those before these steps"
            )
            raise Unfit(msg)
