"""Precision, deterministic kernels and activation checkpointing of a model.

Weights, gradients and moments are always float32, and so is every computation after the logits.
The same choice gives the same bits on the same number of threads.
"""

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from transformers.modeling_layers import GradientCheckpointingLayer

from rollcall.schemas.errors import Refused
from rollcall.schemas.untrusted_text import describe_exception
from rollcall.trainer.config.tables import BFLOAT16, FLOAT32

CUBLAS_WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"
CUBLAS_SAME_BITS = ":4096:8"
"""The workspace with which cuBLAS is deterministic; it reads the variable when it starts."""


def computing(precision: str, device: torch.device) -> AbstractContextManager[object]:
    """Return a context in which a model computes its products in this precision."""
    if precision == FLOAT32:
        return nullcontext()
    context: AbstractContextManager[object] = torch.autocast(device.type, torch.bfloat16)
    return context


@contextmanager
def same_bits(device: str) -> Iterator[None]:
    """Use deterministic kernels; on a CPU all kernels are deterministic already.

    On a GPU the fastest kernels add in the order in which threads finish. The switch is global to
    the process, so it is restored: sampling in the same process may need kernels that have no
    deterministic form.
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
    """Move the model to a device. Raises Refused if the device cannot be used."""
    os.environ.setdefault(CUBLAS_WORKSPACE, CUBLAS_SAME_BITS)
    try:
        moved: nn.Module = model.to(device)
    except (RuntimeError, AssertionError) as error:
        why = describe_exception(error)
        msg = f"device {device!r} cannot be used: {why}; give cpu, or what is there"
        raise Refused(msg) from error
    return moved


def require_precision(model: nn.Module, precision: str) -> None:
    """Raise Refused if device or model do not support the precision: two tokens are tried."""
    if precision == FLOAT32:
        return
    device = next(model.parameters()).device
    reason = _why_no_bfloat16(model, device)
    if reason:
        msg = f"precision {precision!r} on {device.type} with {type(model).__name__}: {reason}; "
        raise Refused(msg + f"give precision {FLOAT32!r}")


def compute_twice(model: nn.Module) -> None:
    """Keep only the input of each layer; recompute its activations in the backward pass.

    The model's own switch works in training mode only, where dropout is on; this works in any mode.
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
    """Yield the layers that transformers can recompute."""
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
    except Exception as error:  # a model that does not support bfloat16 may raise anything
        return describe_exception(error)
    return "" if bool(logits.isfinite().all()) else "its logits are not finite"
