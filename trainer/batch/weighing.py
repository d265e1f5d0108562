"""Weighing of a laid-out batch: the advantage and bonus of each token, and the minibatches.

A turn is a run of tokens that the policy sampled, between two inputs. Invariant: a turn that a
filter leaves out changes no denominator, and no other turn's cost.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from rollcall.schemas.rules import ChosenRule
from rollcall.trainer.batch.rows import Batch, BatchRow
from rollcall.trainer.config.learner_config import LearnerConfig
from rollcall.trainer.rules.aggregates import token_weights
from rollcall.trainer.rules.filters import Filter
from rollcall.trainer.rules.rewards import Advantages, Bonuses, Bools, Ints, Rewards
from rollcall.trainer.rules.staleness import stale_weight


def weigh(
    batch: Batch, rewards: Rewards, config: LearnerConfig, version: int, entropy: float
) -> Batch:
    """Return the batch with advantages and bonuses, without the turns that a filter leaves out.

    `version` is that of the current weights, `entropy` the current entropy coefficient.
    """
    worth = _valued(rewards, config)
    given = config.rules.exploration(rewards, entropy)
    none_N = np.zeros(len(batch.lengths_N))
    bonuses = given if isinstance(given, Bonuses) else Bonuses(given, none_N)
    batch = _with_worth(batch, worth, bonuses)
    if config.staleness.on_stale == "weight":
        batch = aged(batch, version, config.staleness.bound)
    return without_turns(batch, config.rules.turn_filters)


def split(batch: Batch, config: LearnerConfig, version: int) -> list[Batch]:
    """Return the minibatches of all epochs: `minibatch` trajectories per update, 0 for all.

    Each epoch draws a new order of trajectories from seed and version; rows of one update stay in
    log order, and its denominators are its own.
    """
    size, epochs, count = config.optimiser.minibatch, config.optimiser.epochs, len(batch.lengths_N)
    if not 0 < size < count:
        return [batch] * epochs
    random = np.random.Generator(np.random.PCG64((config.seed, version)))
    orders = [random.permutation(count) for _ in range(epochs)]
    return [
        _only(batch, np.sort(order[first : first + size]), config)
        for order in orders
        for first in range(0, count, size)
    ]


def _valued(scored: Rewards, config: LearnerConfig) -> Advantages:
    """Apply shaping and the advantage rule to rewards."""
    shaped = scored
    for shape in config.rules.shaping:
        shaped = replace(shaped, totals_N=shape(shaped))
    given = config.rules.advantage(shaped)
    return given if isinstance(given, Advantages) else Advantages(given)


def _with_worth(batch: Batch, worth: Advantages, bonuses: Bonuses) -> Batch:
    """Set advantages and bonuses in the batch; sequences of a trajectory must be adjacent."""
    taken = np.zeros(len(batch.lengths_N), dtype=np.int64)
    rows = []
    for row in batch.rows:
        number, sampled = row.trajectory, int(row.mask.sum())
        advantages = np.zeros(len(row.mask), dtype=np.float64)
        if worth.tokens is None:
            advantages[row.mask] = worth.values_N[number]
        else:
            first = taken[number]
            advantages[row.mask] = worth.tokens[number][first : first + sampled]
        taken[number] += sampled
        kept = worth.keep_N is None or bool(worth.keep_N[number])
        rows.append(
            replace(
                row,
                advantages=advantages,
                weight=row.weight if kept else 0.0,
                entropy=float(bonuses.entropy_N[number]),
                uniform=bonuses.uniform_N[number] * first_of_turns(row.mask, bonuses.first),
            )
        )
    return replace(batch, rows=tuple(rows), advantages_N=worth.values_N)


def aged(batch: Batch, v_now: int, bound: int) -> Batch:
    """Scale down the advantages of trajectories older than the bound; no weight changes."""
    ages = [v_now - int(version) if version >= 0 else 0 for version in batch.min_versions_N]
    factors = [stale_weight(age, bound) for age in ages]
    rows = [replace(row, advantages=row.advantages * factors[row.trajectory]) for row in batch.rows]
    advantages_N = batch.advantages_N * np.array(factors, dtype=np.float64)
    return replace(batch, rows=tuple(rows), advantages_N=advantages_N)


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
        for first, end in _runs(row.mask)
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


def _runs(mask: Bools) -> Iterator[tuple[int, int]]:
    """Yield the begin and end of each run of true values."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], mask.astype(np.int8), [0]])))
    return ((int(first), int(end)) for first, end in edges.reshape(-1, 2))


def first_of_turns(mask_T: Bools, count: int) -> Bools:
    """Return a mask of the first `count` sampled tokens of each turn, bool [T]; 0: all.

    A turn is a run of sampled tokens between two inputs.
    """
    if not count:
        return mask_T
    # At each token, the sampled ones before its turn: the count at the last unsampled token.
    sampled_T = np.cumsum(mask_T)
    before_turn_T = np.maximum.accumulate(np.where(mask_T, 0, sampled_T))
    return mask_T & (sampled_T - before_turn_T <= count)


def _only(batch: Batch, chosen: Ints, config: LearnerConfig) -> Batch:
    """Return some of the batch's trajectories as a batch of their own."""
    lengths_N = batch.lengths_N[chosen]
    weights_N = token_weights(config.aggregate, lengths_N, config.aggregate_norm)
    places = {int(number): place for place, number in enumerate(chosen)}
    rows = [
        replace(row, trajectory=at, weight=float(weights_N[at]) if row.weight else 0.0)
        for row in batch.rows
        if (at := places.get(row.trajectory)) is not None
    ]
    return Batch(
        tuple(rows),
        batch.rewards_N[chosen],
        batch.advantages_N[chosen],
        lengths_N,
        batch.min_versions_N[chosen],
    )
