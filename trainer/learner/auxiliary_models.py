"""Extra models beside the trained one, as rules need them, and their passes over a batch."""

import copy
from collections.abc import Mapping
from dataclasses import replace

from torch import nn

from rollcall.schemas.errors import Refused
from rollcall.schemas.rules import Need
from rollcall.schemas.weights import RawTensor
from rollcall.trainer.batch.rows import Batch
from rollcall.trainer.learner.forward import loaded
from rollcall.trainer.learner.logprob_cache import LogprobCache
from rollcall.trainer.learner.moving_average import MovingAverage
from rollcall.trainer.learner.scoring_pass import (
    PastWeights,
    Pieces,
    gradient_norms,
    with_logprobs,
    with_own_logprobs,
    with_scores,
    with_snapshots,
)
from rollcall.trainer.rules.objective import Objective
from rollcall.trainer.rules.rewards import Rewards

PASS_BEFORE_STEP = {Need.PROX, Need.STEP, Need.ENTROPY}


class AuxiliaryModels:
    """The reference, the moving average and old versions, and the model itself before a step."""

    def __init__(
        self,
        model: nn.Module,
        objective: Objective,
        needs: frozenset[Need],
        reference: str,
        past: PastWeights | None,
    ) -> None:
        self.model = model
        self.needs = needs
        self.past = past
        self.reference = _reference(model, reference) if Need.REF in needs else None
        self.average = MovingAverage(model, objective.decay) if Need.EWMA in needs else None
        self.scratch = _frozen(model) if Need.SNAPSHOT in needs else None
        self.logprobs = LogprobCache() if Need.NOTED in needs else None
        if self.scratch is not None and past is None:
            msg = "old_logprobs 'snapshot' needs the folder of a run, where its weights are kept"
            raise Refused(msg + "; use recompute")

    def before_step(self, batch: Batch, pieces: Pieces, temperature: float) -> Batch:
        """Run the passes that serve all updates of a step; return the batch with their results."""
        models = {"prox": self.model} if self.needs & PASS_BEFORE_STEP else {}
        if self.reference is not None:
            models["ref"] = self.reference
        if models:
            sure_of = "prox" if Need.ENTROPY in self.needs else ""
            batch = with_own_logprobs(with_logprobs(batch, pieces, models, temperature, sure_of))
        if self.logprobs is not None:
            batch = self.logprobs.added_to(batch)
        if self.scratch is not None and self.past is not None:
            return with_snapshots(batch, pieces, self.scratch, self.past, temperature)
        return batch

    def cache(
        self, batch: Batch, pieces: Pieces, temperature: float, ages: tuple[int, int]
    ) -> None:
        """Cache the model's log-probabilities of its own tokens before it changes, if needed.

        `ages` are the current version, and the oldest that may still be trained on.
        """
        if self.logprobs is not None:
            self.logprobs.keep(
                with_logprobs(batch, pieces, {"prox": self.model}, temperature), *ages
            )

    def for_rewards(
        self, batch: Batch, rewards: Rewards, pieces: Pieces, temperature: float
    ) -> Rewards:
        """Add to the rewards the quantities that reward rules need from extra passes."""
        rewards = with_scores(batch, rewards)
        if Need.NORMS not in self.needs:
            return rewards
        norms_N = gradient_norms(batch, pieces, self.model, temperature)
        return replace(rewards, gradient_norms_N=norms_N)

    def before_update(self, batch: Batch, pieces: Pieces, temperature: float) -> Batch:
        """Run the passes whose model changes with every update."""
        if self.average is None:
            return batch
        return with_logprobs(batch, pieces, {"ewma": self.average.model}, temperature)

    def after_update(self) -> None:
        if self.average is not None:
            self.average.update(self.model)

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
