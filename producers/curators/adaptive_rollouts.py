"""Fewer rollouts for a task that mostly succeeds."""

from dataclasses import dataclass, field
from math import floor

from producers.curators.curator import Curator, Outcome
from producers.curators.success_rates import SuccessRates
from schemas.rules import Rule, require

LEAST = 2
"""A group of one has no baseline."""


@dataclass(frozen=True, slots=True)
class AdaptiveRolloutsOptions:
    fewer_above: float = 0.6
    """A task with a success rate of at most this is given whole groups."""
    keep: float = 0.5
    """How much of a task's earlier rollouts counts when its next group is there."""
    success_above: float = 0.0

    def __post_init__(self) -> None:
        holds = 0 <= self.fewer_above < 1
        require("fewer_above", self.fewer_above, holds, "give a number in [0, 1)")
        require("keep", self.keep, 0 <= self.keep <= 1, "give a number in [0, 1]")


def rollouts_at(p: float, most: int, fewer_above: float = 0.6) -> int:
    """n = max(2, ⌊G·(1 − p)/(1 − 0.6) + 0.5⌋), G at most. Source: DART, adaptive rollouts; ours:
    the line from G at 0.6 down to nothing at 1."""
    # The tolerance lets 8·0.3/0.4 be the 6 that it is on paper.
    wanted = floor(most * (1 - p) / (1 - fewer_above) + 0.5 + 1e-9)
    return min(most, max(LEAST, wanted))


@dataclass
class AdaptiveRollouts(Curator):
    """The size of a group by how often its task has succeeded."""

    options: AdaptiveRolloutsOptions = AdaptiveRolloutsOptions()
    rates: SuccessRates = field(init=False)

    def __post_init__(self) -> None:
        self.rates = SuccessRates(self.options.keep, self.options.success_above)

    def update(self, outcome: Outcome) -> None:
        self.rates.update(outcome)

    def rollouts(self, task: int, most: int) -> int:
        p = self.rates.rate(task)
        return most if p is None else rollouts_at(p, most, self.options.fewer_above)


def adaptive_rollouts(tasks: int, options: AdaptiveRolloutsOptions) -> Curator:
    """A curator that makes groups of what is nearly solved smaller."""
    del tasks
    return AdaptiveRollouts(options)


ADAPTIVE_ROLLOUTS = Rule(
    "adaptive_rollouts",
    "curator",
    "DART, arXiv 2509.23866, adaptive rollouts",
    adaptive_rollouts,
    AdaptiveRolloutsOptions,
    stage="C",
)
