"""Classification of the errors of a step: out of memory, a failed device, or a bad batch."""

import gc

import torch

from rollcall.schemas.errors import BatchFailed, Unavailable, Unfit

OUT_OF_MEMORY = (
    "out of memory",
    "not enough memory",
    "can't allocate memory",
    "cannot allocate memory",
    "alloc_failed",
    "failed to allocate",
)
"""Messages of out-of-memory errors without an exception class of their own, in lower case."""

LESS_MEMORY = (
    "in [learner] give gradient_checkpointing = true or precision = 'bfloat16', train adapters "
    "([policy.lora]), let rollouts be shorter, or give the trainer a device with more memory"
)


class OutOfMemory(Exception):
    """Raised when memory of device or machine was not enough; nothing has changed."""


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
