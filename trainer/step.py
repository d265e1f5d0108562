"""One step: a batch of samples in, new weights and their metrics out.

`begin` has what is known before any gradient (advantages, denominators), `add` the gradient of a
piece, `apply` the clipped update. Laws: the same batches on the same number of threads give the
same bits; a batch in pieces gives the gradient of the whole; an update without a finite gradient
changes nothing.

A step is taken whole or not at all, whatever raises where. What is small is set back. The weights
are not copied for that: until the optimiser begins they have not changed, and that is a
`BatchFailed`, and no step. What raises later leaves weights of no version: then the learner does
nothing but `load`, and its process ends, so that the next one goes on from the checkpoint. Only a
step of several updates has a copy of what was before it, and takes back what it has changed.

Where memory is not enough the batch is computed again in smaller pieces, down to a single row.
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

from schemas.errors import BatchFailed, Refused, Unfit
from schemas.process_memory import return_large_blocks
from schemas.weights import RawTensor
from trainer.arithmetic import FLOAT32, same_bits
from trainer.batch import (
    Batch,
    MicroBatch,
    aged,
    laid_out,
    make_batch,
    micro_batches,
    require_known,
    shared_micro_batches,
)
from trainer.canary import Canary, canary_of
from trainer.clipped_updates import ClippedUpdates
from trainer.config import LearnerConfig
from trainer.entropy_control import EntropyControl
from trainer.extra_pass import PastWeights, step_start
from trainer.gradient import Gradient, step_tokens
from trainer.learner_parts import LearnerParts, announced
from trainer.learner_state import LearnerState
from trainer.minibatches import minibatches
from trainer.onlookers import Onlookers
from trainer.piece_budget import LESS_MEMORY, NoRoom, PieceBudget, give_back, meaning_of
from trainer.publication import as_published
from trainer.replay import adopted
from trainer.rewards import Rewards
from trainer.samples import Sample
from trainer.sharing import sharing_with
from trainer.snapshot import Snapshot
from trainer.staleness import oldest_kept
from trainer.step_metrics import batch_metrics, generation_gap, token_metrics
from trainer.step_sizes.pace import Pace
from trainer.streaming import Streaming, by_group
from trainer.tensors import (
    raw_of,
    view_of,
)
from trainer.trainable_model import trainable
from trainer.turns import without_turns
from trainer.uniform import words_of

log = structlog.get_logger()


class Learner:
    """A policy that is trained. `version` numbers the weights it holds now."""

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
        """In which precision servers are given the weights."""
        self.steps_done = 0
        self._snapshot: Snapshot[LearnerState] | None = None
        self._room = PieceBudget(config.micro_batch_tokens)
        self._torn = ""
        """Why the weights are of no version; empty where they are of one."""
        self._objective, self._step_size = config.rules.objective, config.rules.step_size
        self.model, self._adapted = trainable(model_directory, config, device)
        return_large_blocks(sum(parameter.nbytes for parameter in self.model.parameters()))
        self._sharing = sharing_with(self.model) if config.packing != "rows" else None
        reference = config.rules.reference or model_directory
        self._onlookers = Onlookers(
            self.model, self._objective, config.rules.looks, reference, past
        )
        self._words = words_of(config.rules.exploration, self.vocabulary)
        self._entropy = EntropyControl(config.rules.exploration, config.entropy)
        self._spread()
        self._updates = ClippedUpdates(self.model, config)
        self._parts = LearnerParts(
            self.model, self._adapted, self._updates, self._onlookers, self._entropy
        )

    def step(self, samples: Sequence[Sample], *, version: int | None = None) -> dict[str, float]:
        """Train on the samples once; the result is `version`, by default the next number.

        Raises BatchFailed where the samples cannot be computed with, and Unavailable where past
        weights cannot be read now; nothing has changed then. Raises Unfit after `max_skipped` steps
        in a row whose loss or gradient was not finite.
        """
        if not samples:
            msg = "a step without samples; wait until the buffer gives a batch"
            raise Refused(msg)
        take = self._streamed if self.config.stream else self._at_once
        return self._step(partial(take, samples), len(samples), version)

    def streaming(self) -> Streaming:
        """Begin a step to which groups are added one by one; one at a time may be under way."""
        self._updates.clear()
        return Streaming(self)

    def stream(self, streaming: Streaming, samples: Sequence[Sample]) -> None:
        """Add one group to a step. Raises BatchFailed and Unavailable: nothing of it is left."""
        try:
            with self._or_nothing(len(samples)):
                streaming.add(samples)
            return
        except NoRoom as error:
            self._lower(error)
        give_back()
        msg = f"{len(samples)} samples did not fit; the step is computed anew, in smaller pieces"
        raise BatchFailed(msg)

    def finish(self, streaming: Streaming, *, version: int | None = None) -> dict[str, float]:
        """Take the step with all that was added to it; raises as `step` does."""
        try:
            with self._or_nothing(len(streaming.samples)):
                return self._stepped(self._applied(streaming), version)
        except NoRoom as error:
            self._lower(error)
        give_back()
        return self.step(streaming.samples, version=version)

    def _streamed(self, samples: Sequence[Sample]) -> dict[str, float]:
        streaming = self.streaming()
        for group in by_group(samples):
            streaming.add(group)
        return self._applied(streaming)

    def _applied(self, streaming: Streaming) -> dict[str, float]:
        return streaming.apply(self.config.lr_at(self.steps_done), self._step_size)

    def _at_once(self, samples: Sequence[Sample]) -> dict[str, float]:
        return self._updated(self.begin(samples))

    def _step(
        self, take: Callable[[], dict[str, float]], count: int, version: int | None
    ) -> dict[str, float]:
        several = self.config.epochs > 1 or self.config.minibatch
        before = self.state() if several else None
        while True:
            try:
                with self._or_nothing(count, before):
                    return self._stepped(take(), version)
            except NoRoom as error:
                self._lower(error)
            give_back()  # here, where no traceback holds tensors any more

    @contextmanager
    def _or_nothing(self, count: int, before: LearnerState | None = None) -> Iterator[None]:
        """Have nothing changed by what raises; raise what that means for so many samples."""
        self._require_whole()
        set_back, numbers = self._parts.small(), (self.steps_done, self.version)
        self._updates.touched = False
        try:
            with same_bits(self.device):
                yield
        # Whatever a batch, a user's plug-in on it, a library or an interrupt raises.
        except BaseException as error:
            self.steps_done, self.version = numbers
            self._take_back(set_back, before, error)
            meant = meaning_of(error, count, self._torn)
            if meant is error:
                raise
            raise meant from error

    def _take_back(
        self, set_back: Callable[[], None], before: LearnerState | None, error: BaseException
    ) -> None:
        """Undo what a step has changed; where that cannot be, nothing goes on with what is left."""
        if self._updates.touched:
            self._torn = (
                f"a step to version {self.version + 1} broke off while it changed the weights: "
                f"{type(error).__name__}: {error}; they are of no version and nothing was saved; "
                "the next process goes on from the checkpoint"
            )
        self._updates.clear()
        if self._torn and before is not None:
            self.load(before)
        set_back()

    def _require_whole(self) -> None:
        """Raise Unfit where a step broke off in the middle, until something is loaded."""
        if self._torn:
            raise Unfit(self._torn)

    def _lower(self, error: NoRoom) -> None:
        """Have smaller pieces from now on; raises Unfit where one row did not fit alone."""
        if not self._room.lower():
            msg = f"{error}, not even for a single row; {LESS_MEMORY}"
            raise Unfit(msg)
        log.warning("smaller_pieces", tokens=self._room.tokens, reason=str(error))

    def _stepped(self, metrics: dict[str, float], version: int | None) -> dict[str, float]:
        self._entropy.after_step(metrics["entropy"])
        self.steps_done += 1
        self.version = self.version + 1 if version is None else version
        return metrics | self._room.told()

    def follow_pieces(self, metrics: Mapping[str, float]) -> None:
        """Compute the next step in pieces as large as those of a step with these metrics."""
        self._room.follow(metrics)

    def note(self, samples: Sequence[Sample]) -> None:
        """Note what the weights of now say of what they have sampled of these, for later steps."""
        config = self.config
        oldest = oldest_kept(self.version, config.max_staleness, config.on_stale)
        while True:
            try:
                with self._or_nothing(len(samples)):
                    self._settle()
                    batch, _ = laid_out(samples, config)
                    require_known(batch, self.vocabulary)
                    ages = self.version, oldest
                    self._onlookers.note(batch, self._pieces, config.temperature, ages)
                return
            except NoRoom as error:
                self._lower(error)
            give_back()

    def begin(self, samples: Sequence[Sample]) -> Batch:
        """All that is known of a batch before any gradient: advantages, weights, denominators."""
        return self._looked(self._made(samples))

    def _made(self, samples: Sequence[Sample]) -> Batch:
        """Advantages, weights, denominators; no model is asked unless `values_look`."""
        config = self.config
        samples = adopted(samples) if config.success_pool else samples
        batch = make_batch(samples, config, self._look, self._entropy.weight)
        if config.on_stale == "weight":
            batch = aged(batch, self.version, config.max_staleness)
        return batch

    def _looked(self, batch: Batch) -> Batch:
        """With what is looked at once for all updates."""
        if not self.config.rules.values_look:
            batch = self._before_step(batch)
        return without_turns(batch, self.config.rules.turn_filters)

    def _before_step(self, batch: Batch) -> Batch:
        return self._onlookers.before_step(batch, self._pieces, self.config.temperature)

    def _before_update(self, batch: Batch) -> Batch:
        return self._onlookers.before_update(batch, self._pieces, self.config.temperature)

    def add(self, gradient: Gradient, batch: Batch) -> None:
        """Leave the gradient of a batch, or of some rows of one, in the parameters."""
        for micro in self._pieces(batch):
            gradient.add(micro)

    def apply(self, cost: float, lr: float) -> dict[str, float]:
        """Clip what has been added and change the weights by it, unless it is not finite.

        Raises Unfit after `max_skipped` such updates in a row.
        """
        told = self._updates.apply(cost, lr, self.steps_done, self._settle)
        if not told["skipped"]:
            self._onlookers.after_update()
        return told

    @property
    def vocabulary(self) -> int:
        """How many tokens the model has."""
        return int(self.model.config.vocab_size)

    @property
    def context(self) -> int:
        """How many positions the model has; 0 where its configuration does not say."""
        return int(getattr(self.model.config, "max_position_embeddings", 0))

    def canary(self) -> Canary:
        """The same ids for ever, spread over the vocabulary, scored at temperature 1.

        By the weights that are published: what servers compute with is compared with it.
        """
        self._require_whole()
        as_announced = (
            self._adapted.as_announced if self._adapted else partial(as_published, self.model)
        )
        with torch.no_grad(), as_announced(self.published):
            return canary_of(self.model, self.device)

    def tensors(self) -> dict[str, RawTensor]:
        """What is announced, in order of names, tied tensors once: weights, or adapters alone."""
        self._require_whole()
        return announced(self.model, self._adapted, raw_of)

    def state(self) -> LearnerState:
        """A copy of everything that the next step depends on."""
        self._require_whole()
        return self._copier(raw_of)()

    def snapshot(self) -> Snapshot[LearnerState]:
        """The same, read where it lies, or else copied before the weights change."""
        self._require_whole()
        self._settle()
        self._snapshot = Snapshot(self._copier(raw_of), self._copier(view_of))
        return self._snapshot

    def load(self, state: LearnerState) -> None:
        """Become what `state` was taken of."""
        self._settle()
        self._parts.load(state)
        self.steps_done, self.version = state.step, state.version
        self._torn = ""

    def _look(self, batch: Batch, rewards: Rewards) -> tuple[Batch, Rewards]:
        """What the rules need to know of a batch before advantages are made."""
        require_known(batch, self.vocabulary)
        rewards = replace(rewards, entropy_before=self._entropy.entropy)
        if not self.config.rules.values_look:
            return batch, rewards
        batch, temperature = self._before_step(batch), self.config.temperature
        return batch, self._onlookers.for_rewards(batch, rewards, self._pieces, temperature)

    def _copier(self, raw: Callable[[Tensor], RawTensor]) -> Callable[[], LearnerState]:
        return self._parts.copier(self.steps_done, self.version, raw)

    def _settle(self) -> None:
        """Have the copy of a snapshot made before anything changes that it is of."""
        if self._snapshot is not None:
            self._snapshot.settle()
            self._snapshot = None

    def _updated(self, batch: Batch) -> dict[str, float]:
        """Change the weights, once or for every minibatch; return what is known of it all."""
        lr = self.config.lr_at(self.steps_done)
        pace: Pace = self._step_size(step_start(batch))
        known = {**batch_metrics(batch, self.version), **batch.told, **pace.told}
        told: list[dict[str, float]] = []
        tokens: list[np.ndarray] = []
        parts = list(minibatches(batch, self.config, self.version))
        for number, part in enumerate(parts, 1):
            update = self._before_update(part)
            self._updates.clear()
            gradient = self.gradient_of(update)
            self.add(gradient, update)
            if not told:  # the weights are still those that the newest tokens were sampled by
                known |= generation_gap(update, gradient.numbers(), self.version)
            tokens += gradient.numbers()
            if number == len(parts):  # what can fail comes before what cannot be undone
                known |= token_metrics(tokens, gradient.told)
            told.append(self.apply(gradient.cost, lr * pace.factor))
        return known | {key: fmean(one[key] for one in told) for key in told[0]}

    def gradient_of(self, batch: Batch) -> Gradient:
        """An update's, or a part's, before anything is added; what is in the parameters stays."""
        step = step_tokens(batch)
        return Gradient(self.model, self.config, self._objective, self.version, step, self._words)

    def _spread(self) -> None:
        """Where a learner is several processes, each keeps its part of the weights from here on."""

    def _pieces(self, batch: Batch) -> Iterator[MicroBatch]:
        budget, precision = self._room.tokens, self.config.precision
        exact, sharing = self.config.exact, self._sharing
        if sharing is None:
            pieces = micro_batches(batch, budget, self.device)
        else:
            if self._room.lowered:
                sharing = replace(sharing, widest=min(sharing.widest, budget))
            fill = self.config.packing == "packed"
            pieces = shared_micro_batches(batch, sharing, budget, self.device, fill=fill)
        pieces = self._room.noted(pieces)
        return (replace(micro, precision=precision, exact=exact) for micro in pieces)
