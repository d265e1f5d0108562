"""A filter of turns by entropy: the turns of lowest entropy are left out."""

from dataclasses import dataclass

import numpy as np

from rollcall.schemas.rules import Rule, require
from rollcall.trainer.filters.group_filter import Filter
from rollcall.trainer.rewards import Bools, Floats

SOURCE = "DART, arXiv 2509.23866, step filter"


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
    "high_entropy", "filters", SOURCE, high_entropy, Surest, frozenset({"batch", "entropy"}), "F"
)
