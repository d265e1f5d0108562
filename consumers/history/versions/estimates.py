"""Estimates from a sample of rollouts: pass@k, and bootstrap intervals over tasks.

Rollouts of one task are not independent, so tasks are resampled, each with all of its rollouts (the
cluster bootstrap). Two versions are compared on the tasks that both were given, so that the
difficulty of a task cancels in the difference.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import comb

import numpy as np


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean, and the interval that contains the level's share of resampled means."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.4f} [{self.low:.3f}, {self.high:.3f}]"


def pass_at_k(n: int, c: int, k: int) -> float:
    """Return 1 - C(n-c, k) / C(n, k): the unbiased probability that one of k is right, given c of
    n.

    Source: Chen et al. 2021, arXiv 2107.03374, equation 1. Raises ValueError unless 0 <= c <= n and
    1 <= k <= n.
    """
    if not (0 <= c <= n and 1 <= k <= n):
        msg = f"pass@{k} of {c} right ones among {n} is not defined"
        raise ValueError(msg)
    return 1.0 - comb(n - c, k) / comb(n, k)


@dataclass(frozen=True, slots=True)
class Bootstrap:
    """The parameters of the bootstrap: equal data and seed give the same interval."""

    resamples: int = 1000
    seed: int = 0
    level: float = 0.95

    def mean(self, sums: Sequence[float], counts: Sequence[float]) -> Estimate:
        """Return sum(sums) / sum(counts), with one of each per task, and percentiles over resampled
        tasks.

        Raises ValueError for no task.
        """
        total, size = np.asarray(sums, np.float64), np.asarray(counts, np.float64)
        if len(total) == 0 or len(total) != len(size) or not (size > 0).all():
            msg = f"a mean needs a sum and a count above 0 of each task; found {len(total)} tasks"
            raise ValueError(msg)
        draw, means = np.random.default_rng(self.seed), np.empty(self.resamples)
        for number in range(self.resamples):
            drawn = draw.integers(0, len(total), len(total))
            means[number] = total[drawn].sum() / size[drawn].sum()
        tail = (1 - self.level) / 2
        low, high = np.quantile(means, (tail, 1 - tail)) if self.resamples else (np.nan, np.nan)
        return Estimate(float(total.sum() / size.sum()), float(low), float(high))

    def difference(self, first: Sequence[float], second: Sequence[float]) -> Estimate:
        """Return the mean of second - first over the same tasks, in the same
        order; raises ValueError."""
        differences = np.asarray(second, np.float64) - np.asarray(first, np.float64)
        return self.mean(differences.tolist(), [1.0] * len(differences))
