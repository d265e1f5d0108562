"""What a batch's tokens look like to other weights, or to those of now before any gradient."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from schemas.weights import RawTensor
from trainer.batch import Batch, MicroBatch
from trainer.forward import forward
from trainer.step_sizes.pace import StepStart
from trainer.tensors import load_tensors

Pieces = Callable[[Batch], Iterable[MicroBatch]]
PastWeights = Callable[[int], Mapping[str, RawTensor] | None]
"""The weights of a version; None where they are gone."""
Floats32 = NDArray[np.float32]


def looked_at(
    batch: Batch, pieces: Pieces, models: Mapping[str, nn.Module], temperature: float
) -> Batch:
    """The batch with what each model thinks of its tokens, by its name: one pass for all of them.

    Without gradients; 0 where the mask is.
    """
    found: dict[int, dict[str, Floats32]] = {}
    for micro in pieces(batch) if models else ():
        for name, model in models.items():
            for row, lp_T in _lp(model, micro, batch, temperature):
                found.setdefault(row, {})[name] = lp_T
    rows = [replace(row, seen={**row.seen, **found.get(b, {})}) for b, row in enumerate(batch.rows)]
    return replace(batch, rows=tuple(rows))


def with_snapshots(
    batch: Batch,
    pieces: Pieces,
    scratch: nn.Module,
    past: PastWeights,
    temperature: float,
) -> Batch:
    """The batch with what the weights that sampled a token think of it, as `snapshot`.

    nan on sampled tokens whose weights are gone, 0 on what nobody sampled. `scratch` is a model
    of the same shape; its weights are overwritten.
    """
    seen = [
        np.where(row.mask, np.float32(np.nan), np.float32(0)).astype(np.float32)
        for row in batch.rows
    ]
    for version in sorted({int(v) for row in batch.rows for v in row.versions[row.mask]}):
        tensors = past(version)
        if tensors is None:
            continue
        load_tensors(scratch, tensors)
        own = [b for b, row in enumerate(batch.rows) if _of(row.versions, row.mask, version).any()]
        part = replace(batch, rows=tuple(batch.rows[b] for b in own))
        for micro in pieces(part):
            for at, lp_T in _lp(scratch, micro, part, temperature):
                row = part.rows[at]
                there = _of(row.versions, row.mask, version)
                seen[own[at]][there] = lp_T[there]
    rows = [
        replace(row, seen={**row.seen, "snapshot": lp_T})
        for row, lp_T in zip(batch.rows, seen, strict=True)
    ]
    return replace(batch, rows=tuple(rows))


def step_start(batch: Batch) -> StepStart:
    """The view of a batch whose tokens the model has looked at; empty where it has not."""
    count = len(batch.lengths_N)
    sums_N, seen_N = np.zeros(count), np.zeros(count, dtype=np.int64)
    for row in batch.rows:
        prox = row.seen.get("prox")
        if prox is not None:
            apart = prox.astype(np.float64) - row.behaviour_logprobs
            sums_N[row.trajectory] += apart[row.mask].sum()
            seen_N[row.trajectory] += int(row.mask.sum())
    return StepStart(sums_N[seen_N > 0], seen_N[seen_N > 0])


def _lp(
    model: nn.Module, micro: MicroBatch, batch: Batch, temperature: float
) -> Iterator[tuple[int, Floats32]]:
    """Of each row of a piece its log-probabilities, [T]."""
    with torch.no_grad():
        lp_BT = forward(model, micro, temperature).lp_BT.cpu().numpy()
    for b, row in enumerate(micro.rows):
        yield row, lp_BT[b, : len(batch.rows[row].token_ids)].copy()


def _of(versions: NDArray[np.int32], mask: NDArray[np.bool_], version: int) -> NDArray[np.bool_]:
    there: NDArray[np.bool_] = mask & (versions == version)
    return there
