"""Turns of a batch: what the policy said between two things that it was told.

The law: what a filter leaves out of an update changes no denominator, and no other turn's cost.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from schemas.rules import Chosen
from trainer.batch import Batch, BatchRow
from trainer.filters.group_filter import Filter
from trainer.rewards import Bools


@dataclass(frozen=True, slots=True)
class Turn:
    """Sampled tokens that follow one another in a row of a batch."""

    row: int
    first: int
    end: int
    entropy: float
    """The mean over its tokens at the step's start, nats."""


def turns_of(batch: Batch) -> list[Turn]:
    """All of them, in log order; somebody has looked at their entropies."""
    return [
        Turn(number, first, end, float(row.seen["entropy"][first:end].astype(np.float64).mean()))
        for number, row in enumerate(batch.rows)
        for first, end in _stretches(row.mask)
    ]


def without_turns(batch: Batch, filters: Sequence[Chosen[Filter]]) -> Batch:
    """The batch with the turns that every filter keeps; it tells their share, `turns_kept`.

    A row of which nothing is left is gone; what its tokens weigh is as it was.
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
    told = {**batch.told, "turns_kept": float(kept.mean())}
    return replace(batch, rows=tuple(rows), told=told)


def _masked(row: BatchRow, mask: Bools) -> BatchRow:
    return replace(row, mask=mask, advantages=row.advantages * mask)


def _stretches(mask: Bools) -> Iterator[tuple[int, int]]:
    """Of each run of true values where it begins and where it has ended."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], mask.astype(np.int8), [0]])))
    return ((int(first), int(end)) for first, end in edges.reshape(-1, 2))
