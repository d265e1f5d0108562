"""Filters that select scored groups or turns for training.

- `none`: every group is trained on.
- `zero_variance`: groups with equal rewards are left out, since all of their advantages are 0.
- `high_entropy`: the turns of lowest entropy are left out.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rollcall.schemas.rules import Need, NoOptions, Rule, require
from rollcall.trainer.rules.rewards import Bools, Floats
from rollcall.trainer.rules.samples import Sample

Filter = Callable[..., Any]
"""A function of (samples of a complete group, options) to True if the group is trained on. Rewards
are as scored, before any shaping; a user's function without options takes the samples alone.

A filter that needs `entropy` is applied to a batch instead: (mean entropies of its turns [K],
options) to a mask of the turns that are trained on, bool [K]."""


def every_group(samples: Sequence[Sample], options: NoOptions) -> bool:
    """Keep every group."""
    del samples, options
    return True


NONE: Rule[Filter] = Rule("none", "filters", "no filter", every_group, stage="F")


ZERO_VARIANCE_SOURCE = "DAPO, arXiv 2503.14476, §3.2"


def zero_variance(samples: Sequence[Sample], options: NoOptions) -> bool:
    """Keep if max R − min R > 1e-8. P(kept) = 1 − p^G − (1 − p)^G where p is the success rate.

    Source: DAPO, arXiv 2503.14476, §3.2 (dynamic sampling).
    """
    del options
    rewards = [sample.reward for sample in samples]
    return max(rewards) - min(rewards) > 1e-8


ZERO_VARIANCE: Rule[Filter] = Rule(
    "zero_variance",
    "filters",
    ZERO_VARIANCE_SOURCE,
    zero_variance,
    needs=frozenset({Need.GROUP}),
    stage="F",
)


HIGH_ENTROPY_SOURCE = "DART, arXiv 2509.23866, step filter"


@dataclass(frozen=True, slots=True)
class Surest:
    """The share of turns that is left out."""

    quantile: float = 0.2
    """Turns below this quantile of the batch."""

    def __post_init__(self) -> None:
        require("quantile", self.quantile, 0 <= self.quantile < 1, "give a share in [0, 1)")


def high_entropy(entropies: Floats, options: Surest) -> Bools:
    """Keep turns whose mean token entropy is at least the batch's 20 % quantile, bool [K].

    Between two turns the quantile is interpolated. Source: DART, arXiv 2509.23866.
    """
    kept: Bools = entropies >= np.quantile(entropies, options.quantile)
    return kept


HIGH_ENTROPY: Rule[Filter] = Rule(
    "high_entropy",
    "filters",
    HIGH_ENTROPY_SOURCE,
    high_entropy,
    Surest,
    frozenset({Need.BATCH, Need.ENTROPY}),
    "F",
)
