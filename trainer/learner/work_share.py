"""The pieces of a batch that this process computes, and their size after memory ran out.

A lowered size stays until the process ends, and each step records it: the same batch in other
pieces has the same gradient only up to rounding, so reproducing a step needs the same pieces.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from rollcall.trainer.batch.packing import Worth
from rollcall.trainer.batch.pieces import MicroBatch, micro_batches, shared_micro_batches
from rollcall.trainer.batch.rows import Batch
from rollcall.trainer.config.learner_config import LearnerConfig
from rollcall.trainer.learner.gradient import Gradient

PIECE_TOKENS = "piece_tokens"
"""The metric of a step that was computed in smaller pieces than configured."""


class WorkShare:
    """The whole work on a batch, piece by piece; several ranks have a part each."""

    def __init__(self, config: LearnerConfig, sharing: Worth | None, device: str) -> None:
        self.config, self.sharing, self.device = config, sharing, device
        self.tokens = config.computation.micro_batch_tokens
        """The number of tokens that are computed at once."""
        self._rows = self._given = 0

    @property
    def lowered(self) -> bool:
        return self.tokens < self.config.computation.micro_batch_tokens

    def pieces(self, batch: Batch) -> Iterator[MicroBatch]:
        """Yield the batch's pieces, packed as configured; remember the size of the last one."""
        precision, exact = self.config.computation.precision, self.config.computation.exact
        for micro in self._packed(batch):
            self._rows = len(micro.rows)
            given = micro.token_ids_BT if micro.shared is None else micro.shared.token_ids_PW
            self._given = given.numel()
            yield replace(micro, precision=precision, exact=exact)

    def join_scores(self, batch: Batch) -> Batch:
        """Return the batch with the results of all ranks' passes; here there is one rank."""
        return batch

    def join_gradient(self, gradient: Gradient) -> None:
        """Set the sums of a gradient to those of all ranks; here there is one rank."""

    def lower(self) -> bool:
        """Set the limit to half of the piece that did not fit; False if it had one row."""
        if self._rows <= 1:
            return False
        self.tokens = max(1, min(self.tokens, self._given) // 2)
        return True

    def metrics(self) -> dict[str, float]:
        """Return the metric for a step's record; empty if the limit is not lowered."""
        return {PIECE_TOKENS: float(self.tokens)} if self.lowered else {}

    def follow(self, metrics: Mapping[str, float]) -> None:
        """Set the limit of a recorded step, from its metrics."""
        self.tokens = int(metrics.get(PIECE_TOKENS, self.config.computation.micro_batch_tokens))

    def _packed(self, batch: Batch) -> Iterator[MicroBatch]:
        if self.sharing is None:
            return micro_batches(batch, self.tokens, self.device)
        sharing = self.sharing
        if self.lowered:
            sharing = replace(sharing, widest=min(sharing.widest, self.tokens))
        fill = self.config.computation.packing == "packed"
        return shared_micro_batches(batch, sharing, self.tokens, self.device, fill=fill)
