"""Splitting of a batch into minibatches, one update of the weights each."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from rollcall.trainer.batch.rows import Batch
from rollcall.trainer.config.learner_config import LearnerConfig
from rollcall.trainer.rules.aggregates import token_weights
from rollcall.trainer.rules.rewards import Ints


def minibatches(batch: Batch, config: LearnerConfig, version: int) -> Iterator[Batch]:
    """Yield the minibatches of all epochs: `minibatch` trajectories per update, 0 for all.

    Each epoch draws a new order of trajectories from seed and version; rows of one update stay in
    log order, and its denominators are its own.
    """
    size, epochs, count = config.minibatch, config.epochs, len(batch.lengths_N)
    if not 0 < size < count:
        for _ in range(epochs):
            yield batch
        return
    random = np.random.Generator(np.random.PCG64((config.seed, version)))
    for _ in range(epochs):
        order = random.permutation(count)
        for first in range(0, count, size):
            yield _only(batch, np.sort(order[first : first + size]), config)


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
