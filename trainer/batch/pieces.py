"""Rows of a batch as padded tensors: the micro-batches that the model is given.

Shapes: B sequences (rows) of a micro-batch, T tokens of its longest one. Rows stay in log order.
Padding is on the right, where no real token of a causal model attends to it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rollcall.trainer.batch.packing import (
    ModelInput,
    Worth,
    filled,
    model_input,
    pack_row,
    packs_of,
    pieces_of,
)
from rollcall.trainer.batch.rows import Batch
from rollcall.trainer.config.tables import FLOAT32


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """Rows padded to one length. Row b is `rows[b]` of the batch."""

    rows: tuple[int, ...]
    token_ids_BT: Tensor
    mask_BT: Tensor
    behaviour_logprobs_BT: Tensor
    versions_BT: Tensor
    attention_mask_BT: Tensor
    position_ids_BT: Tensor
    advantage_BT: Tensor
    reward_B: Tensor
    weight_B: Tensor
    entropy_B1: Tensor
    """float32, like the entropies that it is multiplied with."""
    uniform_BT: Tensor
    seen: Mapping[str, Tensor]
    """Each [B,T]; only the names that all of its rows have."""
    teacher_BT: Tensor | None = None
    shared: ModelInput | None = None
    """The model's input in place of these rows, where they share a prefix."""
    precision: str = FLOAT32
    """The precision of matrix products."""
    exact: bool = False
    """True: compute each token in the shape in which the engine computed it."""


def micro_batches(batch: Batch, budget_tokens: int, device: str = "cpu") -> Iterator[MicroBatch]:
    """Yield rows of similar length together, B·T within the budget (a single row may exceed it).

    The split and its order depend on the rows alone: the same batch gives the same sums.
    """
    order = sorted(range(len(batch.rows)), key=lambda b: len(batch.rows[b].token_ids))
    taken: list[int] = []
    for b in order:
        if taken and (len(taken) + 1) * len(batch.rows[b].token_ids) > budget_tokens:
            yield padded(batch, taken, device)
            taken = []
        taken.append(b)
    if taken:
        yield padded(batch, taken, device)


def shared_micro_batches(
    batch: Batch, worth: Worth, budget_tokens: int, device: str = "cpu", *, fill: bool = False
) -> Iterator[MicroBatch]:
    """Yield the same rows, but with shared prefixes given to the model once.

    With `fill`, rows that share nothing are concatenated too; the budget counts input tokens.
    Raises ValueError for a row whose first token was sampled.
    """
    rows = [pack_row(b, row.token_ids, row.mask) for b, row in enumerate(batch.rows)]
    made = packs_of(rows, worth)
    for packs in pieces_of(filled(made, worth, budget_tokens) if fill else made, budget_tokens):
        taken = [row.row for pack in packs for row in pack.rows]
        yield replace(padded(batch, taken, device), shared=model_input(packs, device))


def padded(batch: Batch, rows: Sequence[int], device: str = "cpu") -> MicroBatch:
    """Return the given rows as tensors, in log order, padded on the right with token and mask 0."""
    rows = sorted(rows)
    chosen = [batch.rows[b] for b in rows]
    width = max(len(row.token_ids) for row in chosen)

    def stacked(arrays: Sequence[NDArray[np.generic]], dtype: torch.dtype) -> Tensor:
        out = np.zeros((len(arrays), width), dtype=arrays[0].dtype)
        for b, array in enumerate(arrays):
            out[b, : len(array)] = array
        return torch.from_numpy(out).to(device, dtype)

    known = [name for name in chosen[0].seen if all(name in row.seen for row in chosen)]
    teacher = [row.teacher for row in chosen if row.teacher is not None]
    ones = [np.ones(len(row.token_ids), dtype=np.int64) for row in chosen]
    return MicroBatch(
        tuple(rows),
        stacked([row.token_ids for row in chosen], torch.int64),
        stacked([row.mask for row in chosen], torch.bool),
        stacked([row.behaviour_logprobs for row in chosen], torch.float32),
        stacked([row.versions for row in chosen], torch.int64),
        stacked(ones, torch.int64),
        torch.arange(width, device=device).expand(len(rows), -1),
        stacked([row.advantages for row in chosen], torch.float64),
        torch.tensor([row.reward for row in chosen], dtype=torch.float64, device=device),
        torch.tensor([row.weight for row in chosen], dtype=torch.float64, device=device),
        torch.tensor([[row.entropy] for row in chosen], dtype=torch.float32, device=device),
        stacked([row.uniform for row in chosen], torch.float32),
        {name: stacked([row.seen[name] for row in chosen], torch.float32) for name in known},
        stacked(teacher, torch.float32) if len(teacher) == len(chosen) else None,
    )
