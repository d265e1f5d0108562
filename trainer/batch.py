"""Samples to padded tensors, and a batch to micro-batches that add up to the same gradient.

Shapes: N trajectories, B sequences (rows) of a micro-batch, T tokens of its longest one. Rows stay
in log order. Everything that a mean divides by is taken over the whole batch before it is split:
each row carries its final weight, so micro-batches are summed, never averaged. Padding is on the
right, where no real token of a causal model can see it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from schemas.messages import Sequence as TokenSequence
from schemas.packed import ids_of, logprobs_of
from trainer.advantage import AdvantageRule, Floats, Ints
from trainer.loss import token_weights
from trainer.samples import Sample, mine


@dataclass(frozen=True, slots=True)
class BatchRow:
    """One sequence of one trajectory, masked to our policy; arrays are [T]."""

    trajectory: int
    token_ids: NDArray[np.int32]
    mask: NDArray[np.bool_]
    behaviour_logprobs: NDArray[np.float32]
    versions: NDArray[np.int32]
    advantage: float
    weight: float
    """What each sampled token's loss is multiplied by; see `loss.token_weights`."""


@dataclass(frozen=True, slots=True)
class Batch:
    """A whole step's rows, with what is known per trajectory."""

    rows: tuple[BatchRow, ...]
    rewards_N: Floats
    advantages_N: Floats
    lengths_N: Ints
    min_versions_N: Ints

    @property
    def tokens(self) -> int:
        return int(self.lengths_N.sum())


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
    advantage_B: Tensor
    weight_B: Tensor


def make_batch(samples: Sequence[Sample], rule: AdvantageRule, aggregate: str, norm: int) -> Batch:
    """Rows in the order of the samples; advantages and weights over all of them at once.

    `norm` is the constant L of `seq_mean_token_sum_norm`. Sequences without a token of our policy
    are left out; a trajectory counts once, however many sequences it has.
    """
    rewards_N = np.array([sample.reward for sample in samples], dtype=np.float64)
    lengths_N = np.array([sample.length for sample in samples], dtype=np.int64)
    groups_N = group_numbers([sample.group for sample in samples])
    advantages_N = rule(rewards_N, groups_N, lengths_N)
    weights_N = token_weights(aggregate, lengths_N, norm)
    rows = [
        row
        for number, sample in enumerate(samples)
        for sequence in sample.scored.trajectory.sequences or ()
        if (row := _row(number, sequence, sample, advantages_N, weights_N)).mask.any()
    ]
    versions_N = np.array([sample.min_version for sample in samples], dtype=np.int64)
    return Batch(tuple(rows), rewards_N, advantages_N, lengths_N, versions_N)


def group_numbers(groups: Sequence[str]) -> Ints:
    """Groups numbered in order of appearance, [N]."""
    numbers: dict[str, int] = {}
    return np.array([numbers.setdefault(group, len(numbers)) for group in groups], dtype=np.int64)


def micro_batches(batch: Batch, budget_tokens: int, device: str = "cpu") -> Iterator[MicroBatch]:
    """Rows of like length together, B·T within the budget (one row may exceed it alone).

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


def padded(batch: Batch, rows: Sequence[int], device: str = "cpu") -> MicroBatch:
    """The given rows as tensors, in log order, padded on the right with token 0 and mask 0."""
    rows = sorted(rows)
    chosen = [batch.rows[b] for b in rows]
    width = max(len(row.token_ids) for row in chosen)

    def stacked(arrays: Sequence[NDArray[np.generic]], dtype: torch.dtype) -> Tensor:
        out = np.zeros((len(arrays), width), dtype=arrays[0].dtype)
        for b, array in enumerate(arrays):
            out[b, : len(array)] = array
        return torch.from_numpy(out).to(device, dtype)

    ones = [np.ones(len(row.token_ids), dtype=np.int64) for row in chosen]
    return MicroBatch(
        tuple(rows),
        stacked([row.token_ids for row in chosen], torch.int64),
        stacked([row.mask for row in chosen], torch.bool),
        stacked([row.behaviour_logprobs for row in chosen], torch.float32),
        stacked([row.versions for row in chosen], torch.int64),
        stacked(ones, torch.int64),
        torch.arange(width, device=device).expand(len(rows), -1),
        torch.tensor([row.advantage for row in chosen], dtype=torch.float64, device=device),
        torch.tensor([row.weight for row in chosen], dtype=torch.float64, device=device),
    )


def _row(
    number: int, sequence: TokenSequence, sample: Sample, advantages_N: Floats, weights_N: Floats
) -> BatchRow:
    return BatchRow(
        number,
        ids_of(sequence.token_ids),
        mine(sequence, sample.policy_index),
        logprobs_of(sequence.behaviour_logprobs),
        ids_of(sequence.versions),
        float(advantages_N[number]),
        float(weights_N[number]),
    )
