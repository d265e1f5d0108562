"""A learner of several processes. The trainer calls rank 0, which sends the calls to the others.

Every rank makes the same calls in the same order, since a call on a model with sharded weights
needs all ranks: rank 0 broadcasts each call, then all execute it. Each computes its own rows;
gradients are summed, never averaged, so any number of ranks gives the gradient of one. A rank that
cannot continue ends, and the others end with it, so that none waits for ever.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NoReturn

import numpy as np

from rollcall.schemas.errors import Unfit
from rollcall.schemas.weights import RawTensor, weights_digest
from rollcall.trainer.batch.batch_message import array_of, raw, read, written
from rollcall.trainer.batch.packing import Worth
from rollcall.trainer.batch.pieces import MicroBatch, padded
from rollcall.trainer.batch.rows import Batch
from rollcall.trainer.checkpoints.learner_state import LearnerState
from rollcall.trainer.config.learner_config import LearnerConfig
from rollcall.trainer.learner.canary import Canary
from rollcall.trainer.learner.gradient import Gradient
from rollcall.trainer.learner.out_of_memory import LESS_MEMORY, OutOfMemory, is_out_of_memory
from rollcall.trainer.learner.ranks import RankMessage, Ranks, own_rows, require_alike
from rollcall.trainer.learner.scoring_pass import PastWeights
from rollcall.trainer.learner.snapshot import Snapshot
from rollcall.trainer.learner.step import Learner
from rollcall.trainer.learner.work_share import WorkShare
from rollcall.trainer.rules.rewards import Rewards
from rollcall.trainer.rules.samples import Sample

PARTS = ("weights", "optimiser", "rng")
STEP, SCORE, LOAD, END = "step", "score", "load", "end"
STATE, TENSORS, CANARY = "state", "tensors", "canary"


class ShardedLearner(Learner):
    """A `Learner` over several ranks: rank 0 is called, the others run `follow`.

    Raises Refused, on all ranks, if they differ in configuration or starting weights.
    """

    def __init__(
        self,
        model_directory: str,
        config: LearnerConfig,
        ranks: Ranks,
        *,
        device: str = "cpu",
        version: int = 0,
        past: PastWeights | None = None,
    ) -> None:
        self.ranks = ranks
        self._together = False
        """True while all ranks execute one call."""
        require_alike(ranks, {"world size": str(ranks.count), **_as_text(config)})
        super().__init__(model_directory, config, device=device, version=version, past=past)

    def step(self, samples: Sequence[Sample], *, version: int | None = None) -> dict[str, float]:
        """Take a step as `Learner.step`. Raises Unfit if the ranks cannot compute the batch."""
        if not samples:
            return super().step(samples)
        try:
            with self._atomic_step(len(samples)):  # the other ranks take part in passes only
                batch = self.prepare(samples)
                tensors = written(batch)
        except OutOfMemory as error:
            self._lower(error)
        with self._all(STEP, tensors, now=self.version, count=len(samples), version=version):
            return self._update_together(batch, len(samples), version)

    def load(self, state: LearnerState) -> None:
        parts = {part: getattr(state, part) for part in PARTS}
        tensors = {
            f"{part}/{name}": tensor for part in PARTS for name, tensor in parts[part].items()
        }
        with self._all(
            LOAD, tensors, step=state.step, version=state.version, skipped=state.skipped
        ):
            super().load(state)

    def state(self) -> LearnerState:
        with self._all(STATE):
            return super().state()

    def snapshot(self) -> Snapshot[LearnerState]:
        """Return a snapshot that is copied at once: a later copy would need all ranks."""
        state = self.state()
        return Snapshot(lambda: state)

    def tensors(self) -> dict[str, RawTensor]:
        with self._all(TENSORS):
            return super().tensors()

    def canary(self) -> Canary:
        with self._all(CANARY, published=self.published):
            return super().canary()

    def follow(self) -> None:
        """Execute the calls of rank 0 until it ends; run by the other ranks."""
        self._together = True
        while True:
            message = RankMessage.of(self.ranks.broadcast())
            if message.plain["call"] == END:
                return
            self._follow(str(message.plain["call"]), message)

    def end(self) -> None:
        """End the other ranks' `follow`."""
        with self._all(END):
            pass

    def _follow(self, call: str, message: RankMessage) -> None:
        plain: Any = message.plain
        if call == STEP:
            self.version = plain["now"]
            self._update_together(read(message.tensors), plain["count"], plain["version"])
        elif call == LOAD:
            super().load(_state_of(message))
        elif call == CANARY:
            self.published = plain["published"]
            super().canary()
        elif call == SCORE:
            with self._or_end():
                self._auxiliary.before_step(read(message.tensors))
        else:
            # The result is dropped: this rank only takes part in the collective operations.
            {STATE: super().state, TENSORS: super().tensors}[call]()

    @contextmanager
    def _all(
        self, call: str, tensors: dict[str, RawTensor] | None = None, **plain: int | str | None
    ) -> Iterator[None]:
        """Broadcast this call to the other ranks, unless all ranks are within one already."""
        if self._together:
            yield
            return
        self.ranks.broadcast(RankMessage({"call": call, **plain}, tensors or {}).packed())
        self._together = True
        try:
            yield
        finally:
            self._together = False

    def _score(self, batch: Batch, rewards: Rewards) -> tuple[Batch, Rewards]:
        """Run the passes before a step as a call of all ranks."""
        if not self._auxiliary.has_step_passes:
            return super()._score(batch, rewards)
        with self._all(SCORE, written(batch)), self._or_end():
            return super()._score(batch, rewards)

    def _update_together(self, batch: Batch, count: int, version: int | None) -> dict[str, float]:
        with self._or_end(), self._atomic_step(count, self._state_before()):
            return self._finished(self._update(batch), version)

    @contextmanager
    def _or_end(self) -> Iterator[None]:
        """Turn recoverable errors into Unfit: the other ranks are in the middle of the call."""
        try:
            yield
        except OutOfMemory as error:
            self._lower(error)
        except Exception as error:
            if isinstance(error, Unfit) or is_out_of_memory(error):
                raise
            msg = f"rank {self.ranks.rank} of {self.ranks.count}: {error}; the others wait for it"
            raise Unfit(msg) from error

    def _lower(self, error: OutOfMemory) -> NoReturn:
        """Raise Unfit: the other ranks are in the middle of a step with unchanged pieces."""
        msg = (
            f"rank {self.ranks.rank} of {self.ranks.count}: {error}; lower micro_batch_tokens, or "
        )
        raise Unfit(msg + LESS_MEMORY) from error

    def _spread(self) -> None:
        digest = weights_digest(super().tensors())
        require_alike(self.ranks, {"starting weights": digest[:16]})
        self.ranks.spread(self.model)

    def _work_share(self, sharing: Worth | None) -> WorkShare:
        return RankShare(self.config, sharing, self.device, self.ranks)


class RankShare(WorkShare):
    """The work of one of several ranks: its rows of each batch."""

    def __init__(
        self, config: LearnerConfig, sharing: Worth | None, device: str, ranks: Ranks
    ) -> None:
        super().__init__(config, sharing, device)
        self.ranks = ranks

    def pieces(self, batch: Batch) -> Iterator[MicroBatch]:
        """Yield the pieces of this rank's rows, and idle ones, so that all ranks have as many."""
        own = own_rows(batch, self.ranks.rank, self.ranks.count)
        part = replace(batch, rows=tuple(batch.rows[b] for b in own))
        pieces = [
            replace(micro, rows=tuple(own[b] for b in micro.rows)) for micro in super().pieces(part)
        ]
        counts = self.ranks.all_gather(str(len(pieces)).encode())
        idle = max(map(int, counts)) - len(pieces)
        yield from pieces + [_idle(batch, self.device, self.config.computation.precision)] * idle

    def join_scores(self, batch: Batch) -> Batch:
        """Exchange the results of passes, which each rank has for its own rows."""
        seen = {
            f"{b}/{name}": raw(array)
            for b in own_rows(batch, self.ranks.rank, self.ranks.count)
            for name, array in batch.rows[b].seen.items()
        }
        rows = list(batch.rows)
        for message in map(RankMessage.of, self.ranks.all_gather(RankMessage({}, seen).packed())):
            for key, tensor in message.tensors.items():
                b, _, name = key.partition("/")
                row = rows[int(b)]
                rows[int(b)] = replace(row, seen={**row.seen, name: array_of(tensor)})
        return replace(batch, rows=tuple(rows))

    def join_gradient(self, gradient: Gradient) -> None:
        gathered = self.ranks.all_gather(_packed(gradient).packed())
        messages = list(map(RankMessage.of, gathered))
        gradient.cost = sum(float(str(message.plain["cost"])) for message in messages)
        names: Any = messages[0].plain["metrics"]
        gradient.metric_names = tuple(names)
        for message in messages:
            gradient.tokens |= {int(b): array_of(numbers) for b, numbers in message.tensors.items()}


def _state_of(message: RankMessage) -> LearnerState:
    plain: Any = message.plain
    parts = {
        part: {
            name.removeprefix(f"{part}/"): tensor
            for name, tensor in message.tensors.items()
            if name.startswith(f"{part}/")
        }
        for part in PARTS
    }
    return LearnerState(plain["step"], plain["version"], plain["skipped"], **parts)


def _as_text(config: LearnerConfig) -> dict[str, str]:
    """Return each value of a configuration by its name in a recipe."""
    return {f"[learner] {key}": repr(value) for key, value in config.flat().items()}


def _packed(gradient: Gradient) -> RankMessage:
    """Pack a gradient's results; the cost as text, since JSON has no nan and repr is exact."""
    tokens = {str(row): raw(numbers) for row, numbers in gradient.tokens.items()}
    return RankMessage({"cost": repr(gradient.cost), "metrics": gradient.metric_names}, tokens)


def _idle(batch: Batch, device: str, precision: str) -> MicroBatch:
    """Return a piece for a rank without rows left: two tokens of weight 0."""
    like, nothing = batch.rows[0], np.zeros(2, np.float32)
    row = replace(
        like,
        token_ids=np.zeros(2, np.int32),
        mask=np.array([False, True]),
        behaviour_logprobs=nothing,
        versions=np.zeros(2, np.int32),
        advantages=np.zeros(2),
        reward=0.0,
        weight=0.0,
        entropy=0.0,
        uniform=np.zeros(2),
        seen=dict.fromkeys(like.seen, nothing),
        teacher=None if like.teacher is None else nothing,
    )
    micro = padded(replace(batch, rows=(row,)), [0], device)
    return replace(micro, rows=(), precision=precision)
