"""How a model is computed: in which precision, and which of its layers twice.

Weights, gradients and moments are float32 whatever is chosen here, and so is all that follows the
logits. The same choice gives the same bits on the same number of threads.
"""

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from transformers.modeling_layers import GradientCheckpointingLayer

from schemas.errors import Refused
from schemas.foreign_text import raised

FLOAT32, BFLOAT16 = PRECISIONS = ("float32", "bfloat16")

CUBLAS_WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"
CUBLAS_SAME_BITS = ":4096:8"
"""With this workspace cuBLAS gives the same bits each time; it reads the variable at its start."""


def computing(precision: str, device: torch.device) -> AbstractContextManager[object]:
    """In which a model's products are made in this precision; `float32` is what it does anyway."""
    if precision == FLOAT32:
        return nullcontext()
    context: AbstractContextManager[object] = torch.autocast(device.type, torch.bfloat16)
    return context


@contextmanager
def same_bits(device: str) -> Iterator[None]:
    """Compute with kernels that give the same bits each time, which on a CPU all do.

    On a GPU the quickest kernels add in the order in which threads come. The switch is the
    process's, so it is put back: what samples in the same process may use kernels that have no such
    form.
    """
    if torch.device(device).type != "cuda":
        yield
        return
    before = torch.are_deterministic_algorithms_enabled()
    warned = torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before, warn_only=warned)


def on(device: str, model: nn.Module) -> nn.Module:
    """The model there; raises Refused where there is no such device."""
    os.environ.setdefault(CUBLAS_WORKSPACE, CUBLAS_SAME_BITS)
    try:
        moved: nn.Module = model.to(device)
    except (RuntimeError, AssertionError) as error:
        msg = f"device {device!r} cannot be used: {raised(error)}; give cpu, or what is there"
        raise Refused(msg) from error
    return moved


def require_precision(model: nn.Module, precision: str) -> None:
    """Raise Refused where device or model cannot be computed in it: it is tried on two tokens."""
    if precision == FLOAT32:
        return
    device = next(model.parameters()).device
    reason = _why_no_bfloat16(model, device)
    if reason:
        msg = f"precision {precision!r} on {device.type} with {type(model).__name__}: {reason}; "
        raise Refused(msg + f"give precision {FLOAT32!r}")


def compute_twice(model: nn.Module) -> None:
    """Keep only what enters each layer; the rest is computed again on the way back.

    The model's own switch works in training mode alone, where dropout is on; ours does in any.
    Source: Training Deep Nets with Sublinear Memory Cost, arXiv 1604.06174, §4. Raises Refused.
    """
    layers = list(_layers(model))
    if not layers:
        msg = (
            f"gradient_checkpointing: {type(model).__name__} names no layers that can be computed "
            "again; take it out of [learner]"
        )
        raise Refused(msg)
    for layer in layers:
        again = partial(checkpoint, layer.forward, use_reentrant=False, preserve_rng_state=False)
        layer.forward = again


def _layers(model: nn.Module) -> Iterator[nn.Module]:
    """What transformers would compute again."""
    if getattr(model, "supports_gradient_checkpointing", False):
        yield from (
            each for each in model.modules() if isinstance(each, GradientCheckpointingLayer)
        )


def _why_no_bfloat16(model: nn.Module, device: torch.device) -> str:
    if device.type == "cuda" and not torch.cuda.is_bf16_supported(including_emulation=False):
        return "the device has no such numbers"
    ids = torch.zeros(1, 2, dtype=torch.int64, device=device)
    try:
        with torch.no_grad(), computing(BFLOAT16, device):
            logits = model(input_ids=ids, use_cache=False).logits
    except Exception as error:  # whatever a model raises that is not made for it
        return raised(error)
    return "" if bool(logits.isfinite().all()) else "its logits are not finite"
