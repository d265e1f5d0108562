"""The size limit of a batch's pieces: as configured, or lower after the memory ran out.

A lowered limit stays until the process ends, and each step records it: the same batch in other
pieces has the same gradient only up to rounding, so reproducing a step needs the same pieces.
"""

import gc
from collections.abc import Iterable, Iterator, Mapping

import torch

from rollcall.schemas.errors import BatchFailed, Unavailable, Unfit
from rollcall.trainer.batch.pieces import MicroBatch

PIECE_TOKENS = "piece_tokens"
"""The metric of a step that was computed in smaller pieces than configured."""

OUT_OF_MEMORY = (
    "out of memory", "not enough memory", "can't allocate memory", "cannot allocate memory",
    "alloc_failed", "failed to allocate",
)  # fmt: skip
"""Messages of out-of-memory errors without an exception class of their own, in lower case."""


LESS_MEMORY = (
    "in [learner] give gradient_checkpointing = true or precision = 'bfloat16', train adapters "
    "([policy.lora]), let rollouts be shorter, or give the trainer a device with more memory"
)


class OutOfMemory(Exception):
    """Raised when memory of device or machine was not enough; nothing has changed."""


class PieceBudget:
    """The number of tokens that are computed at once."""

    def __init__(self, configured: int) -> None:
        self.configured = self.tokens = configured
        self._rows = self._given = 0

    @property
    def lowered(self) -> bool:
        return self.tokens < self.configured

    def measured(self, pieces: Iterable[MicroBatch]) -> Iterator[MicroBatch]:
        """Yield the pieces, and remember the size of the last one."""
        for micro in pieces:
            self._rows = len(micro.rows)
            given = micro.token_ids_BT if micro.shared is None else micro.shared.token_ids_PW
            self._given = given.numel()
            yield micro

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
        self.tokens = int(metrics.get(PIECE_TOKENS, self.configured))


def is_out_of_memory(error: BaseException) -> bool:
    """Return True if the error means that memory of device or machine was not enough."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    text = str(error).lower()
    return isinstance(error, RuntimeError) and any(part in text for part in OUT_OF_MEMORY)


def error_for(error: BaseException, count: int, broken: str) -> BaseException:
    """Map an exception raised while training on `count` samples to the one to raise."""
    if isinstance(error, Unfit | Unavailable) or not isinstance(error, Exception):
        return error
    what = f"{type(error).__name__}: {error}"
    if broken:
        return Unfit(broken + (f"; {LESS_MEMORY}" if is_out_of_memory(error) else ""))
    if is_out_of_memory(error):
        return OutOfMemory(f"{count} samples did not fit into memory: {what}")
    if isinstance(error, torch.AcceleratorError):
        return Unfit(f"the device failed while {count} samples were trained on: {what}")
    return BatchFailed(f"{count} samples cannot be trained on: {what}")


def free_memory() -> None:
    """Free the memory of an interrupted computation."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
