"""Streaming steps: gradients are added as groups complete, and applied with the whole batch.

Each group is computed alone: its advantages need no other group, and the common denominator is
divided out once, at the end. So any order gives the gradient of the whole batch up to rounding, and
the same order gives the same bits. The weights do not change until the end. Sources: FlexMARL;
Periodic Asynchrony: g = Σ_m (b_m/B)·∇L_m(θ_k).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from rollcall.trainer.batch.rows import Batch
from rollcall.trainer.config.fitting import COUNTS_TOKENS
from rollcall.trainer.learner.gradient import Gradient
from rollcall.trainer.learner.step_metrics import batch_metrics, generation_gap, token_metrics
from rollcall.trainer.rules.rewards import Ints
from rollcall.trainer.rules.samples import Sample


@dataclass(eq=False)
class Streaming:
    """An open step: the parameters hold the undivided sum of its groups' gradients."""

    count: int = 0
    """The denominator for the end."""
    cost: float = 0.0
    samples: list[Sample] = field(default_factory=list)
    """The added samples, group after group; the same order gives the same bits."""
    _batches: list[Batch] = field(default_factory=list)
    _numbers: list[np.ndarray] = field(default_factory=list)
    _metric_names: tuple[str, ...] = ()

    def add(self, samples: Sequence[Sample], batch: Batch, gradient: Gradient, count: int) -> None:
        """Count a group whose undivided gradient was added; `count` is its denominator."""
        self.count += count
        self.cost += gradient.cost
        self.samples += samples
        self._numbers += gradient.numbers()
        self._batches.append(batch)
        self._metric_names = gradient.metric_names

    def batch(self) -> Batch:
        """Return all added groups as one batch."""
        return joined(self._batches)

    def metrics(self, batch: Batch, version: int, more: Mapping[str, float]) -> dict[str, float]:
        """Return the metrics of the whole batch; `more` holds further ones."""
        gap = generation_gap(batch, self._numbers, version)
        known = batch_metrics(batch, version) | gap | dict(more)
        return known | token_metrics(self._numbers, self._metric_names)


def undivided(batch: Batch, aggregate: str) -> tuple[Batch, int]:
    """Return a group without its own denominator, and that denominator.

    The end of the step divides by the sum of all groups' denominators.
    """
    count = denominator(batch.lengths_N, tokens=COUNTS_TOKENS[aggregate])
    rows = tuple(replace(row, weight=row.weight * count) for row in batch.rows)
    return replace(batch, rows=rows), count


def denominator(lengths_N: Ints, *, tokens: bool) -> int:
    """Return the denominator that the aggregate uses for a group alone."""
    return max(int(lengths_N.sum() if tokens else (lengths_N > 0).sum()), 1)


def by_group(samples: Iterable[Sample]) -> list[list[Sample]]:
    """Return the groups of a batch in order of appearance."""
    groups: dict[str, list[Sample]] = {}
    for sample in samples:
        groups.setdefault(sample.group, []).append(sample)
    return list(groups.values())


def joined(batches: Sequence[Batch]) -> Batch:
    """Concatenate batches, with consecutive trajectory numbers."""
    firsts = np.cumsum([0, *(len(batch.lengths_N) for batch in batches)])
    rows = tuple(
        replace(row, trajectory=row.trajectory + int(first))
        for batch, first in zip(batches, firsts, strict=False)
        for row in batch.rows
    )

    def one(of: Callable[[Batch], np.ndarray]) -> np.ndarray:
        return np.concatenate([of(batch) for batch in batches])

    return Batch(
        rows,
        one(lambda batch: batch.rewards_N),
        one(lambda batch: batch.advantages_N),
        one(lambda batch: batch.lengths_N),
        one(lambda batch: batch.min_versions_N),
    )
