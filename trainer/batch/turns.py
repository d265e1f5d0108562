"""Turns of a batch: runs of tokens that the policy sampled, between two inputs.

Invariant: a turn that a filter leaves out changes no denominator, and no other turn's cost.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from rollcall.schemas.rules import ChosenRule
from rollcall.trainer.batch.rows import Batch, BatchRow
from rollcall.trainer.rules.filters import Filter
from rollcall.trainer.rules.rewards import Bools


@dataclass(frozen=True, slots=True)
class Turn:
    """Consecutive sampled tokens in a row of a batch."""

    row: int
    first: int
    end: int
    entropy: float
    """The mean entropy of its tokens at the step's start, nats."""


def turns_of(batch: Batch) -> list[Turn]:
    """Return all turns, in log order; the batch must have `entropy`."""
    return [
        Turn(number, first, end, float(row.seen["entropy"][first:end].astype(np.float64).mean()))
        for number, row in enumerate(batch.rows)
        for first, end in _stretches(row.mask)
    ]


def without_turns(batch: Batch, filters: Sequence[ChosenRule[Filter]]) -> Batch:
    """Keep the turns that every filter keeps; add the metric `turns_kept`, their share.

    Rows without turns left are removed; weights of tokens stay unchanged.
    """
    if not filters:
        return batch
    turns = turns_of(batch)
    entropies = np.array([turn.entropy for turn in turns], dtype=np.float64)
    kept = np.ones(len(turns), dtype=np.bool_)
    for each in filters:
        kept &= each(entropies)
    masks = [np.zeros_like(row.mask) for row in batch.rows]
    for turn, stays in zip(turns, kept, strict=True):
        masks[turn.row][turn.first : turn.end] = stays
    rows = [_masked(row, mask) for row, mask in zip(batch.rows, masks, strict=True) if mask.any()]
    metrics = {**batch.metrics, "turns_kept": float(kept.mean())}
    return replace(batch, rows=tuple(rows), metrics=metrics)


def _masked(row: BatchRow, mask: Bools) -> BatchRow:
    return replace(row, mask=mask, advantages=row.advantages * mask)


def _stretches(mask: Bools) -> Iterator[tuple[int, int]]:
    """Yield the begin and end of each run of true values."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], mask.astype(np.int8), [0]])))
    return ((int(first), int(end)) for first, end in edges.reshape(-1, 2))
