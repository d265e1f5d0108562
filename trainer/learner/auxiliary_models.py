"""Extra models beside the trained one, as rules need them, and their passes over a batch."""

import copy
from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import nn

from rollcall.schemas.errors import Refused
from rollcall.schemas.rules import Need
from rollcall.schemas.weights import RawTensor
from rollcall.trainer.batch.rows import Batch
from rollcall.trainer.config.learner_config import LearnerConfig
from rollcall.trainer.learner.forward import loaded
from rollcall.trainer.learner.logprob_cache import LogprobCache
from rollcall.trainer.learner.scoring_pass import (
    PastWeights,
    gradient_norms,
    with_logprobs,
    with_own_logprobs,
    with_scores,
    with_snapshots,
)
from rollcall.trainer.learner.work_share import WorkShare
from rollcall.trainer.rules.rewards import Rewards
from rollcall.trainer.weights.tensors import exported, raw_of, tensor_of, whole

PASS_BEFORE_STEP = {Need.PROX, Need.STEP, Need.ENTROPY}

AVERAGE = "average"
"""The suffix of the names of the average's tensors among those of the optimiser."""
TOTAL = f"total/{AVERAGE}"


class AuxiliaryModels:
    """The reference, the moving average and old versions, and the model itself before a step."""

    def __init__(
        self,
        model: nn.Module,
        config: LearnerConfig,
        directory: str,
        past: PastWeights | None,
        share: WorkShare,
    ) -> None:
        self.model = model
        self.past = past
        self._needs = needs = config.rules.needed_scores
        self._rewards_need_scores = config.rules.rewards_need_scores
        self._temperature, self._share = config.temperature, share
        named = config.rules.reference or directory
        self.reference = _reference(model, named) if Need.REF in needs else None
        self.average = (
            MovingAverage(model, config.rules.objective.decay) if Need.EWMA in needs else None
        )
        self.scratch = _frozen(model) if Need.SNAPSHOT in needs else None
        self.logprobs = LogprobCache() if Need.NOTED in needs else None
        if self.scratch is not None and past is None:
            msg = "old_logprobs 'snapshot' needs the folder of a run, where its weights are kept"
            raise Refused(msg + "; use recompute")
        self._models = {"prox": model} if needs & PASS_BEFORE_STEP else {}
        if self.reference is not None:
            self._models["ref"] = self.reference

    @property
    def has_step_passes(self) -> bool:
        """True if a batch is scored before a step."""
        return bool(self._models) or self.logprobs is not None or self.scratch is not None

    def score(self, batch: Batch, rewards: Rewards) -> tuple[Batch, Rewards]:
        """Return a laid-out batch and its rewards with all scores that rules need before a step."""
        batch = self.before_step(batch)
        if not self._rewards_need_scores:
            return batch, rewards
        rewards = with_scores(batch, rewards)
        if Need.NORMS in self._needs:
            norms_N = gradient_norms(batch, self._share.pieces, self.model, self._temperature)
            rewards = replace(rewards, gradient_norms_N=norms_N)
        return batch, rewards

    def before_step(self, batch: Batch) -> Batch:
        """Run the passes that serve all updates of a step; return the batch with their results."""
        if not self.has_step_passes:
            return batch  # joining results is a call of all ranks, which none has begun
        pieces = self._share.pieces
        if self._models:
            sure_of = "prox" if Need.ENTROPY in self._needs else ""
            scored = with_logprobs(batch, pieces, self._models, self._temperature, sure_of)
            batch = with_own_logprobs(scored)
        if self.logprobs is not None:
            batch = self.logprobs.added_to(batch)
        if self.scratch is not None and self.past is not None:
            batch = with_snapshots(batch, pieces, self.scratch, self.past, self._temperature)
        return self._share.join_scores(batch)

    def before_update(self, batch: Batch) -> Batch:
        """Run the passes whose model changes with every update."""
        if self.average is None:
            return batch
        models = {"ewma": self.average.model}
        scored = with_logprobs(batch, self._share.pieces, models, self._temperature)
        return self._share.join_scores(scored)

    def after_update(self) -> None:
        if self.average is not None:
            self.average.update(self.model)

    def cache(self, batch: Batch, version: int, oldest: int) -> None:
        """Cache the model's log-probabilities of its own tokens before it changes, if needed.

        `oldest` is the oldest version that may still be trained on.
        """
        if self.logprobs is not None:
            models = {"prox": self.model}
            scored = with_logprobs(batch, self._share.pieces, models, self._temperature)
            self.logprobs.keep(scored, version, oldest)

    def state(self) -> dict[str, RawTensor]:
        """Return the state for a checkpoint."""
        parts = [each.state() for each in (self.average, self.logprobs) if each is not None]
        return {name: raw for part in parts for name, raw in part.items()}

    def load(self, state: Mapping[str, RawTensor]) -> None:
        """Restore from `state`; the model's weights must be loaded before."""
        if self.average is not None:
            self.average.load(state, self.model)
        if self.logprobs is not None:
            self.logprobs.load(state)


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
        weights = {f"{name}/{AVERAGE}": raw_of(t) for name, t in exported(self.model).items()}
        return weights | {TOTAL: raw_of(torch.tensor(self.total, dtype=torch.float64))}

    def load(self, state: Mapping[str, RawTensor], model: nn.Module) -> None:
        """Restore from `state`; use the model's weights if it has no average."""
        now = exported(model)
        known = TOTAL in state
        self.total = tensor_of(state[TOTAL]).item() if known else 1.0
        with torch.no_grad():
            for name, mean in exported(self.model).items():
                mean.copy_(tensor_of(state[f"{name}/{AVERAGE}"]) if known else whole(now[name]))


def _frozen(model: nn.Module) -> nn.Module:
    return copy.deepcopy(model).requires_grad_(False)


def _reference(model: nn.Module, named: str) -> nn.Module:
    """Load a reference. Raises Refused for another vocabulary or a shorter context."""
    reference = loaded(named).to(next(model.parameters()).device).eval().requires_grad_(False)
    theirs, ours = reference.config.vocab_size, model.config.vocab_size
    if theirs != ours:
        msg = f"the reference {named!r} has {theirs} tokens, the policy {ours}; give one of its own"
        raise Refused(msg + " tokens, such as what the policy began as")
    reads, needed = (
        getattr(each.config, "max_position_embeddings", 0) for each in (reference, model)
    )
    if reads and reads < needed:
        msg = f"the reference {named!r} reads {reads} positions, the policy {needed}; give one "
        raise Refused(msg + "that reads as many, such as what the policy began as")
    return reference
