"""A training step: from a batch of samples to new weights and metrics.

`Learner.prepare` lays out the samples, scores their tokens and weighs them; `_update` splits the
batch and updates the weights. Invariants: the same batches on the same number of threads give the
same bits; a batch in pieces gives the gradient of the whole; an update with a non-finite gradient
changes nothing.

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

import structlog
import torch

from rollcall.schemas.errors import BatchFailed, Refused, Unfit
from rollcall.schemas.process_memory import return_large_blocks
from rollcall.schemas.weights import RawTensor
from rollcall.trainer.batch.packing import Worth
from rollcall.trainer.batch.rows import Batch, lay_out
from rollcall.trainer.batch.weighing import split, weigh
from rollcall.trainer.checkpoints.learner_state import LearnerState
from rollcall.trainer.config.learner_config import LearnerConfig
from rollcall.trainer.config.tables import FLOAT32
from rollcall.trainer.curation.replay import adopted
from rollcall.trainer.learner.arithmetic import same_bits
from rollcall.trainer.learner.auxiliary_models import AuxiliaryModels
from rollcall.trainer.learner.canary import Canary, canary_of
from rollcall.trainer.learner.clipped_updates import ClippedUpdates
from rollcall.trainer.learner.entropy_control import EntropyControl
from rollcall.trainer.learner.learner_parts import LearnerParts, announced, trainable
from rollcall.trainer.learner.out_of_memory import (
    LESS_MEMORY,
    OutOfMemory,
    error_for,
    free_memory,
)
from rollcall.trainer.learner.scoring_pass import PastWeights
from rollcall.trainer.learner.sharing import sharing_with
from rollcall.trainer.learner.snapshot import Snapshot
from rollcall.trainer.learner.streaming import Streaming, by_group, undivided
from rollcall.trainer.learner.work_share import WorkShare
from rollcall.trainer.rules.rewards import Rewards
from rollcall.trainer.rules.samples import Sample
from rollcall.trainer.rules.staleness import oldest_kept
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
        self._broken = ""
        """The reason why the weights belong to no version; empty if they belong to one."""
        self.model, self._adapted = trainable(model_directory, config, device)
        return_large_blocks(sum(parameter.nbytes for parameter in self.model.parameters()))
        self._share = self._work_share(
            sharing_with(self.model) if config.computation.packing != "rows" else None
        )
        self._auxiliary = AuxiliaryModels(self.model, config, model_directory, past, self._share)
        self._entropy = EntropyControl(config.rules.exploration, config.entropy)
        self._spread()
        self._updates = ClippedUpdates(self.model, config, self._auxiliary, self._share)
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
        before = self._state_before()
        while True:
            try:
                with self._atomic_step(len(samples), before):
                    train = self._train_by_group if self.config.stream else self._train
                    return self._finished(train(samples), version)
            except OutOfMemory as error:
                self._lower(error)
            free_memory()  # here, since a traceback no longer keeps tensors alive

    def _train(self, samples: Sequence[Sample]) -> dict[str, float]:
        return self._update(self.prepare(samples))

    def prepare(self, samples: Sequence[Sample]) -> Batch:
        """Compute what a batch needs before any gradient: scores, advantages, denominators."""
        config = self.config
        samples = adopted(samples) if config.replay.pool else samples
        batch, rewards = lay_out(samples, config, self.vocabulary)
        batch, rewards = self._score(batch, rewards)
        rewards = replace(rewards, entropy_before=self._entropy.entropy)
        return weigh(batch, rewards, config, self.version, self._entropy.weight)

    def _score(self, batch: Batch, rewards: Rewards) -> tuple[Batch, Rewards]:
        return self._auxiliary.score(batch, rewards)

    def _update(self, batch: Batch) -> dict[str, float]:
        """Update the weights, once per minibatch; return the metrics."""
        parts = split(batch, self.config, self.version)
        return self._updates.update(batch, parts, self.version, self.steps_done)

    def _train_by_group(self, samples: Sequence[Sample]) -> dict[str, float]:
        streaming = self.streaming()
        for group in by_group(samples):
            self._add_group(streaming, group)
        return self._updates.finish(streaming, self.version, self.steps_done)

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
                metrics = self._updates.finish(streaming, self.version, self.steps_done)
                return self._finished(metrics, version)
        except OutOfMemory as error:
            self._lower(error)
        free_memory()
        return self.step(streaming.samples, version=version)

    def _add_group(self, streaming: Streaming, samples: Sequence[Sample]) -> None:
        """Add the undivided gradient of one whole group."""
        batch = self.prepare(samples)
        group, count = undivided(batch, self.config.aggregate)
        streaming.add(samples, batch, self._updates.add(group, self.version), count)

    def _state_before(self) -> LearnerState | None:
        """Copy the state if a later update of a step may fail after the first has changed it."""
        optimiser = self.config.optimiser
        return self.state() if optimiser.epochs > 1 or optimiser.minibatch else None

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
        if not self._share.lower():
            msg = f"{error}, not even for a single row; {LESS_MEMORY}"
            raise Unfit(msg)
        log.warning("smaller_pieces", tokens=self._share.tokens, reason=str(error))

    def _finished(self, metrics: dict[str, float], version: int | None) -> dict[str, float]:
        """Count a step that was taken; return its metrics."""
        self._entropy.after_step(metrics["entropy"])
        self.steps_done += 1
        self.version = self.version + 1 if version is None else version
        return metrics

    def follow_pieces(self, metrics: Mapping[str, float]) -> None:
        """Compute the next step in pieces as large as those of a step with these metrics."""
        self._share.follow(metrics)

    def cache_logprobs(self, samples: Sequence[Sample]) -> None:
        """Cache the current log-probabilities of tokens that the current weights sampled."""
        config = self.config
        oldest = oldest_kept(self.version, config.staleness.bound, config.staleness.on_stale)
        while True:
            try:
                with self._atomic_step(len(samples)):
                    self._updates.settle()
                    batch, _ = lay_out(samples, config, self.vocabulary)
                    self._auxiliary.cache(batch, self.version, oldest)
                return
            except OutOfMemory as error:
                self._lower(error)
            free_memory()

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
        return self._parts.copier(self.steps_done, self.version, raw_of)()

    def snapshot(self) -> Snapshot[LearnerState]:
        """Return the same as a snapshot, read in place or copied before the weights change."""
        self._require_whole()
        self._updates.settle()
        copier = partial(self._parts.copier, self.steps_done, self.version)
        self._updates.snapshot = snapshot = Snapshot(copier(raw_of), copier(view_of))
        return snapshot

    def load(self, state: LearnerState) -> None:
        """Restore a state."""
        self._updates.settle()
        self._parts.load(state)
        self.steps_done, self.version = state.step, state.version
        self._broken = ""

    def _work_share(self, sharing: Worth | None) -> WorkShare:
        return WorkShare(self.config, sharing, self.device)

    def _spread(self) -> None:
        """Shard the weights, in a learner of several processes; here nothing is to be done."""
