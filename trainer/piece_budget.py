"""How large a piece of a batch may be: as configured, or less since the device's memory ran out.

What is lowered stays lowered until the process ends, and each step says it: the same batch in other
pieces has the same gradient but for rounding, so whoever trains it again needs the same pieces.
"""

import gc
from collections.abc import Iterable, Iterator, Mapping

import torch

from schemas.errors import BatchFailed, Unavailable, Unfit
from trainer.batch import MicroBatch

PIECE_TOKENS = "piece_tokens"
"""The metric of a step that was computed in smaller pieces than configured."""

OUT_OF_MEMORY = (
    "out of memory", "not enough memory", "can't allocate memory", "cannot allocate memory",
    "alloc_failed", "failed to allocate",
)  # fmt: skip
"""What libraries say that raise no class of their own for it, in lower case."""


LESS_MEMORY = (
    "in [learner] give gradient_checkpointing = true or precision = 'bfloat16', train adapters "
    "([policy.lora]), let rollouts be shorter, or give the trainer a device with more memory"
)


class NoRoom(Exception):
    """The memory of the device, or the machine's, was not enough; nothing has changed."""


class PieceBudget:
    """Tokens that are computed at once."""

    def __init__(self, configured: int) -> None:
        self.configured = self.tokens = configured
        self._rows = self._given = 0

    @property
    def lowered(self) -> bool:
        return self.tokens < self.configured

    def noted(self, pieces: Iterable[MicroBatch]) -> Iterator[MicroBatch]:
        """The pieces, of which the one that was given last is known."""
        for micro in pieces:
            self._rows = len(micro.rows)
            given = micro.token_ids_BT if micro.shared is None else micro.shared.token_ids_PW
            self._given = given.numel()
            yield micro

    def lower(self) -> bool:
        """Halve what the piece had that did not fit; False where it was of one row."""
        if self._rows <= 1:
            return False
        self.tokens = max(1, min(self.tokens, self._given) // 2)
        return True

    def told(self) -> dict[str, float]:
        """What a step's record has to say of it."""
        return {PIECE_TOKENS: float(self.tokens)} if self.lowered else {}

    def follow(self, metrics: Mapping[str, float]) -> None:
        """Be what it was when a step with these metrics was taken."""
        self.tokens = int(metrics.get(PIECE_TOKENS, self.configured))


def out_of_memory(error: BaseException) -> bool:
    """Whether memory was not enough, the device's or the machine's, whoever says so."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    said = str(error).lower()
    return isinstance(error, RuntimeError) and any(words in said for words in OUT_OF_MEMORY)


def meaning_of(error: BaseException, count: int, torn: str) -> BaseException:
    """What follows from what was raised while so many samples were trained on."""
    if isinstance(error, Unfit | Unavailable) or not isinstance(error, Exception):
        return error
    what = f"{type(error).__name__}: {error}"
    if torn:
        return Unfit(torn + (f"; {LESS_MEMORY}" if out_of_memory(error) else ""))
    if out_of_memory(error):
        return NoRoom(f"{count} samples did not fit into memory: {what}")
    if isinstance(error, torch.AcceleratorError):
        return Unfit(f"the device failed while {count} samples were trained on: {what}")
    return BatchFailed(f"{count} samples cannot be trained on: {what}")


def give_back() -> None:
    """Free what a computation has left that did not come to its end."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
