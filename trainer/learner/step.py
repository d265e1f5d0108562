"""A training step: from a batch of samples to new weights and metrics.

`begin` computes what is needed before any gradient (advantages, denominators), `add` the gradient
of a piece, `apply` the clipped update. Invariants: the same batches on the same number of threads
give the same bits; a batch in pieces gives the gradient of the whole; an update with a non-finite
gradient changes nothing.

A step is atomic under any exception. Small state is restored. The weights are not copied for that:
they are unchanged until the optimiser begins, and an exception before then is a `BatchFailed`. An
exception during the update leaves weights that belong to no version: the learner then accepts only
`load`, and its process ends, so that the next one resumes from the checkpoint. Only a step of
several updates keeps a copy of the state before it, and restores that.

If memory is not enough, the batch is computed again in smaller pieces, down to a single row.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from statistics import fmean

import numpy as np
import structlog
import torch
from torch import Tensor

from rollcall.schemas.errors import BatchFailed, Refused, Unfit
from rollcall.schemas.process_memory import return_large_blocks
from rollcall.schemas.weights import RawTensor
from rollcall.trainer.batch.minibatches import minibatches
from rollcall.trainer.batch.piece_budget import (
    LESS_MEMORY,
    OutOfMemory,
    PieceBudget,
    error_for,
    free_memory,
)
from rollcall.trainer.batch.pieces import MicroBatch, micro_batches, shared_micro_batches
from rollcall.trainer.batch.rows import Batch, aged, laid_out, make_batch, require_known
from rollcall.trainer.batch.turns import without_turns
from rollcall.trainer.batch.uniform import uniform_tokens_of
from rollcall.trainer.checkpoints.learner_state import LearnerState
from rollcall.trainer.config.learner_bounds import FLOAT32
from rollcall.trainer.config.learner_config import LearnerConfig
from rollcall.trainer.curation.replay import adopted
from rollcall.trainer.learner.arithmetic import same_bits
from rollcall.trainer.learner.auxiliary_models import AuxiliaryModels
from rollcall.trainer.learner.canary import Canary, canary_of
from rollcall.trainer.learner.clipped_updates import ClippedUpdates
from rollcall.trainer.learner.entropy_control import EntropyControl
from rollcall.trainer.learner.gradient import Gradient, step_tokens
from rollcall.trainer.learner.learner_parts import LearnerParts, announced
from rollcall.trainer.learner.scoring_pass import PastWeights, step_start
from rollcall.trainer.learner.sharing import sharing_with
from rollcall.trainer.learner.snapshot import Snapshot
from rollcall.trainer.learner.step_metrics import batch_metrics, generation_gap, token_metrics
from rollcall.trainer.learner.streaming import Streaming, by_group, undivided
from rollcall.trainer.learner.trainable_model import trainable
from rollcall.trainer.rules.rewards import Rewards
from rollcall.trainer.rules.samples import Sample
from rollcall.trainer.rules.staleness import oldest_kept
from rollcall.trainer.rules.step_sizes import Pace
from rollcall.trainer.weights.publication import as_published
from rollcall.trainer.weights.tensors import raw_of, view_of

log = structlog.get_logger()


class Learner:
    """A policy in training. `version` is the number of its current weights."""

    def __init__(
        self,
        model_directory: str,
        config: LearnerConfig,
        *,
        device: str = "cpu",
        version: int = 0,
        past: PastWeights | None = None,
    ) -> None:
        torch.manual_seed(config.seed)
        self.config = config
        self.device = device
        self.version = version
        self.published = FLOAT32
        """The precision of the published weights."""
        self.steps_done = 0
        self._snapshot: Snapshot[LearnerState] | None = None
        self._budget = PieceBudget(config.micro_batch_tokens)
        self._broken = ""
        """The reason why the weights belong to no version; empty if they belong to one."""
        self._objective, self._step_size = config.rules.objective, config.rules.step_size
        self.model, self._adapted = trainable(model_directory, config, device)
        return_large_blocks(sum(parameter.nbytes for parameter in self.model.parameters()))
        self._sharing = sharing_with(self.model) if config.packing != "rows" else None
        reference = config.rules.reference or model_directory
        self._auxiliary = AuxiliaryModels(
            self.model, self._objective, config.rules.needed_scores, reference, past
        )
        self._uniform_tokens = uniform_tokens_of(config.rules.exploration, self.vocabulary)
        self._entropy = EntropyControl(config.rules.exploration, config.entropy)
        self._spread()
        self._updates = ClippedUpdates(self.model, config)
        self._parts = LearnerParts(
            self.model, self._adapted, self._updates, self._auxiliary, self._entropy
        )

    def step(self, samples: Sequence[Sample], *, version: int | None = None) -> dict[str, float]:
        """Train on the samples once; the result is `version`, by default the next number.

        Raises BatchFailed if the samples cannot be computed, and Unavailable if past weights cannot
        be read now; nothing has changed then. Raises Unfit after `max_skipped` steps in a row whose
        loss or gradient was not finite.
        """
        if not samples:
            msg = "a step without samples; wait until the buffer gives a batch"
            raise Refused(msg)
        take = self._streamed if self.config.stream else self._at_once
        return self._step(partial(take, samples), len(samples), version)

    def streaming(self) -> Streaming:
        """Begin a step to which groups are added one by one; only one may be open at a time."""
        self._updates.clear()
        return Streaming()

    def stream(self, streaming: Streaming, samples: Sequence[Sample]) -> None:
        """Add one group to a step. Raises BatchFailed and Unavailable, which discard the step."""
        try:
            with self._atomic_step(len(samples)):
                self._add_group(streaming, samples)
            return
        except OutOfMemory as error:
            self._lower(error)
        free_memory()
        msg = f"{len(samples)} samples did not fit; the step is computed anew, in smaller pieces"
        raise BatchFailed(msg)

    def finish(self, streaming: Streaming, *, version: int | None = None) -> dict[str, float]:
        """Take the step with all added groups; raises like `step`."""
        try:
            with self._atomic_step(len(streaming.samples)):
                return self._stepped(self._applied(streaming), version)
        except OutOfMemory as error:
            self._lower(error)
        free_memory()
        return self.step(streaming.samples, version=version)

    def _streamed(self, samples: Sequence[Sample]) -> dict[str, float]:
        streaming = self.streaming()
        for group in by_group(samples):
            self._add_group(streaming, group)
        return self._applied(streaming)

    def _add_group(self, streaming: Streaming, samples: Sequence[Sample]) -> None:
        """Add the undivided gradient of one whole group."""
        batch = self.begin(samples)
        group, count = undivided(batch, self.config.aggregate)
        gradient = self.gradient_of(group)
        self.add(gradient, group)
        streaming.add(samples, batch, gradient, count)

    def _applied(self, streaming: Streaming) -> dict[str, float]:
        """Divide and clip once, update the weights; return the metrics. Raises Unfit."""
        batch = streaming.batch()
        pace: Pace = self._step_size(step_start(batch))
        for parameter in self.model.parameters():
            if parameter.grad is not None:
                parameter.grad.div_(streaming.count)
        known = streaming.metrics(batch, self.version, pace.metrics)
        lr = self.config.lr_at(self.steps_done)
        return known | self.apply(streaming.cost / streaming.count, lr * pace.factor)

    def _at_once(self, samples: Sequence[Sample]) -> dict[str, float]:
        return self._updated(self.begin(samples))

    def _step(
        self, take: Callable[[], dict[str, float]], count: int, version: int | None
    ) -> dict[str, float]:
        # A later update of several may fail after the first has changed the weights.
        several = self.config.epochs > 1 or self.config.minibatch
        before = self.state() if several else None
        while True:
            try:
                with self._atomic_step(count, before):
                    return self._stepped(take(), version)
            except OutOfMemory as error:
                self._lower(error)
            free_memory()  # here, since a traceback no longer keeps tensors alive

    @contextmanager
    def _atomic_step(self, count: int, before: LearnerState | None = None) -> Iterator[None]:
        """Undo changes if the body raises, and map its exception to the one to raise."""
        self._require_whole()
        set_back, numbers = self._parts.small(), (self.steps_done, self.version)
        self._updates.touched = False
        try:
            with same_bits(self.device):
                yield
        # BaseException: a plug-in, a library or an interrupt may raise anything.
        except BaseException as error:
            self.steps_done, self.version = numbers
            self._undo(set_back, before, error)
            meant = error_for(error, count, self._broken)
            if meant is error:
                raise
            raise meant from error

    def _undo(
        self, set_back: Callable[[], None], before: LearnerState | None, error: BaseException
    ) -> None:
        """Undo the changes of a step; if that is impossible, refuse to use what is left."""
        if self._updates.touched:
            self._broken = (
                f"a step to version {self.version + 1} broke off while it changed the weights: "
                f"{type(error).__name__}: {error}; they are of no version and nothing was saved; "
                "the next process goes on from the checkpoint"
            )
        self._updates.clear()
        if self._broken and before is not None:
            self.load(before)
        set_back()

    def _require_whole(self) -> None:
        """Raise Unfit if a step was interrupted during its update and nothing was loaded since."""
        if self._broken:
            raise Unfit(self._broken)

    def _lower(self, error: OutOfMemory) -> None:
        """Use smaller pieces from now on. Raises Unfit if a single row did not fit."""
        if not self._budget.lower():
            msg = f"{error}, not even for a single row; {LESS_MEMORY}"
            raise Unfit(msg)
        log.warning("smaller_pieces", tokens=self._budget.tokens, reason=str(error))

    def _stepped(self, metrics: dict[str, float], version: int | None) -> dict[str, float]:
        self._entropy.after_step(metrics["entropy"])
        self.steps_done += 1
        self.version = self.version + 1 if version is None else version
        return metrics | self._budget.metrics()

    def follow_pieces(self, metrics: Mapping[str, float]) -> None:
        """Compute the next step in pieces as large as those of a step with these metrics."""
        self._budget.follow(metrics)

    def cache_logprobs(self, samples: Sequence[Sample]) -> None:
        """Cache the current log-probabilities of tokens that the current weights sampled."""
        config = self.config
        oldest = oldest_kept(self.version, config.max_staleness, config.on_stale)
        while True:
            try:
                with self._atomic_step(len(samples)):
                    self._settle()
                    batch, _ = laid_out(samples, config)
                    require_known(batch, self.vocabulary)
                    ages = self.version, oldest
                    self._auxiliary.cache(batch, self._pieces, config.temperature, ages)
                return
            except OutOfMemory as error:
                self._lower(error)
            free_memory()

    def begin(self, samples: Sequence[Sample]) -> Batch:
        """Compute what a batch needs before any gradient: advantages, weights, denominators."""
        return self._scored(self._made(samples))

    def _made(self, samples: Sequence[Sample]) -> Batch:
        """Compute advantages, weights, denominators; with a pass if `rewards_need_scores`."""
        config = self.config
        samples = adopted(samples) if config.success_pool else samples
        batch = make_batch(samples, config, self._score, self._entropy.weight)
        if config.on_stale == "weight":
            batch = aged(batch, self.version, config.max_staleness)
        return batch

    def _scored(self, batch: Batch) -> Batch:
        """Run the passes that serve all updates, unless done before, and filter the turns."""
        if not self.config.rules.rewards_need_scores:
            batch = self._before_step(batch)
        return without_turns(batch, self.config.rules.turn_filters)

    def _before_step(self, batch: Batch) -> Batch:
        return self._auxiliary.before_step(batch, self._pieces, self.config.temperature)

    def _before_update(self, batch: Batch) -> Batch:
        return self._auxiliary.before_update(batch, self._pieces, self.config.temperature)

    def add(self, gradient: Gradient, batch: Batch) -> None:
        """Add the gradient of a batch, or of some of its rows, to that in the parameters."""
        for micro in self._pieces(batch):
            gradient.add(micro)

    def apply(self, cost: float, lr: float) -> dict[str, float]:
        """Clip the accumulated gradient and update the weights, unless it is not finite.

        Raises Unfit after `max_skipped` such updates in a row.
        """
        metrics = self._updates.apply(cost, lr, self.steps_done, self._settle)
        if not metrics["skipped"]:
            self._auxiliary.after_update()
        return metrics

    @property
    def vocabulary(self) -> int:
        """The vocabulary size of the model."""
        return int(self.model.config.vocab_size)

    @property
    def context(self) -> int:
        """The number of positions of the model; 0 if its configuration does not give it."""
        return int(getattr(self.model.config, "max_position_embeddings", 0))

    def canary(self) -> Canary:
        """Score the fixed ids of the canary at temperature 1.

        Uses the published weights, since the scores of servers are compared with it.
        """
        self._require_whole()
        as_announced = (
            self._adapted.as_announced if self._adapted else partial(as_published, self.model)
        )
        with torch.no_grad(), as_announced(self.published):
            return canary_of(self.model, self.device)

    def tensors(self) -> dict[str, RawTensor]:
        """Return the tensors to announce, sorted by name, tied ones once: weights or adapters."""
        self._require_whole()
        return announced(self.model, self._adapted, raw_of)

    def state(self) -> LearnerState:
        """Return a copy of everything that the next step depends on."""
        self._require_whole()
        return self._copier(raw_of)()

    def snapshot(self) -> Snapshot[LearnerState]:
        """Return the same as a snapshot, read in place or copied before the weights change."""
        self._require_whole()
        self._settle()
        self._snapshot = Snapshot(self._copier(raw_of), self._copier(view_of))
        return self._snapshot

    def load(self, state: LearnerState) -> None:
        """Restore a state."""
        self._settle()
        self._parts.load(state)
        self.steps_done, self.version = state.step, state.version
        self._broken = ""

    def _score(self, batch: Batch, rewards: Rewards) -> tuple[Batch, Rewards]:
        """Run the passes that rules need before advantages are computed."""
        require_known(batch, self.vocabulary)
        rewards = replace(rewards, entropy_before=self._entropy.entropy)
        if not self.config.rules.rewards_need_scores:
            return batch, rewards
        batch, temperature = self._before_step(batch), self.config.temperature
        return batch, self._auxiliary.for_rewards(batch, rewards, self._pieces, temperature)

    def _copier(self, raw: Callable[[Tensor], RawTensor]) -> Callable[[], LearnerState]:
        return self._parts.copier(self.steps_done, self.version, raw)

    def _settle(self) -> None:
        """Complete the open snapshot before its state changes."""
        if self._snapshot is not None:
            self._snapshot.settle()
            self._snapshot = None

    def _updated(self, batch: Batch) -> dict[str, float]:
        """Update the weights, once per minibatch; return the metrics."""
        lr = self.config.lr_at(self.steps_done)
        pace: Pace = self._step_size(step_start(batch))
        known = {**batch_metrics(batch, self.version), **batch.metrics, **pace.metrics}
        updates: list[dict[str, float]] = []
        tokens: list[np.ndarray] = []
        parts = list(minibatches(batch, self.config, self.version))
        for number, part in enumerate(parts, 1):
            update = self._before_update(part)
            self._updates.clear()
            gradient = self.gradient_of(update)
            self.add(gradient, update)
            if not updates:  # before the first update the weights are those of the newest tokens
                known |= generation_gap(update, gradient.numbers(), self.version)
            tokens += gradient.numbers()
            if number == len(parts):  # may fail, so it comes before the last update
                known |= token_metrics(tokens, gradient.metric_names)
            updates.append(self.apply(gradient.cost, lr * pace.factor))
        return known | {key: fmean(one[key] for one in updates) for key in updates[0]}

    def gradient_of(self, batch: Batch) -> Gradient:
        """Return an empty Gradient for an update; gradients in the parameters stay."""
        step = step_tokens(batch)
        return Gradient(
            self.model, self.config, self._objective, self.version, step, self._uniform_tokens
        )

    def _spread(self) -> None:
        """Shard the weights, in a learner of several processes; here nothing is to be done."""

    def _pieces(self, batch: Batch) -> Iterator[MicroBatch]:
        budget, precision = self._budget.tokens, self.config.precision
        exact, sharing = self.config.exact, self._sharing
        if sharing is None:
            pieces = micro_batches(batch, budget, self.device)
        else:
            if self._budget.lowered:
                sharing = replace(sharing, widest=min(sharing.widest, budget))
            fill = self.config.packing == "packed"
            pieces = shared_micro_batches(batch, sharing, budget, self.device, fill=fill)
        pieces = self._budget.measured(pieces)
        return (replace(micro, precision=precision, exact=exact) for micro in pieces)
