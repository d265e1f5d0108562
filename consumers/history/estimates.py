"""What a sample says about a policy: pass@k, and intervals by resampling tasks.

Rollouts of one task are not independent of each other, so what is drawn again is tasks, each with
all of its rollouts (the cluster bootstrap). Two versions are compared on the tasks that both were
given: what makes a task hard falls out of the difference.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import comb

import numpy as np

RESAMPLES = 1000
LEVEL = 0.95


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean, and the interval that the level's share of resampled means lies in."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.4f} [{self.low:.3f}, {self.high:.3f}]"


def pass_at_k(n: int, c: int, k: int) -> float:
    """1 - C(n-c, k) / C(n, k): the chance that one of k is right, c of n being so; unbiased.

    Source: Chen et al. 2021, arXiv 2107.03374, equation 1. Raises ValueError unless
    0 <= c <= n and 1 <= k <= n.
    """
    if not (0 <= c <= n and 1 <= k <= n):
        msg = f"pass@{k} of {c} right ones among {n} is not defined"
        raise ValueError(msg)
    return 1.0 - comb(n - c, k) / comb(n, k)


def estimate(
    sums: Sequence[float],
    counts: Sequence[float],
    *,
    resamples: int = RESAMPLES,
    seed: int = 0,
    level: float = LEVEL,
) -> Estimate:
    """sum(sums) / sum(counts), one of each per task; percentiles of resampled tasks.

    The same numbers and seed give the same interval. Raises ValueError for no task.
    """
    total, size = np.asarray(sums, np.float64), np.asarray(counts, np.float64)
    if len(total) == 0 or len(total) != len(size) or not (size > 0).all():
        msg = f"a mean needs a sum and a count above 0 of each task; found {len(total)} tasks"
        raise ValueError(msg)
    draw, means = np.random.default_rng(seed), np.empty(resamples)
    for number in range(resamples):
        drawn = draw.integers(0, len(total), len(total))
        means[number] = total[drawn].sum() / size[drawn].sum()
    tail = (1 - level) / 2
    low, high = np.quantile(means, (tail, 1 - tail)) if resamples else (np.nan, np.nan)
    return Estimate(float(total.sum() / size.sum()), float(low), float(high))


def paired(
    first: Sequence[float],
    second: Sequence[float],
    *,
    resamples: int = RESAMPLES,
    seed: int = 0,
    level: float = LEVEL,
) -> Estimate:
    """The mean of second - first over the same tasks, in the same order."""
    differences = np.asarray(second, np.float64) - np.asarray(first, np.float64)
    ones = np.ones(len(differences))
    return estimate(
        differences.tolist(), ones.tolist(), resamples=resamples, seed=seed, level=level
    )
