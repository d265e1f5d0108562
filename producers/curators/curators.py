"""Every curator that a recipe can choose by name; those that limit a task's rollouts are here.

`adaptive_rollouts` makes smaller groups of a task that mostly succeeds, `length_cap` allows no more
turns than its longest success has taken, and `accept_all` starts every task that is drawn.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import floor
from typing import Any

from rollcall.producers.curators.curator import Curator, Outcome, SuccessRates
from rollcall.producers.curators.greso import GRESO
from rollcall.producers.curators.task_choice import FILTER_SOLVED, PACED, PASS_RATE
from rollcall.schemas.rules import NoOptions, Rule, choose, require, table

LEAST = 2
"""A group of one has no baseline."""


@dataclass(frozen=True, slots=True)
class AdaptiveRolloutsOptions:
    fewer_above: float = 0.6
    """A task with a success rate of at most this gets whole groups."""
    keep: float = 0.5
    """The factor on the counts of a task's earlier rollouts at each further group."""
    success_above: float = 0.0

    def __post_init__(self) -> None:
        holds = 0 <= self.fewer_above < 1
        require("fewer_above", self.fewer_above, holds, "give a number in [0, 1)")
        require("keep", self.keep, 0 <= self.keep <= 1, "give a number in [0, 1]")


def rollouts_at(p: float, most: int, fewer_above: float = 0.6) -> int:
    """n = max(2, ⌊G·(1 − p)/(1 − 0.6) + 0.5⌋), at most G. Source: DART, adaptive rollouts; ours:
    the line from G at 0.6 down to nothing at 1."""
    # The tolerance makes 8·0.3/0.4 the exact 6 in spite of rounding.
    wanted = floor(most * (1 - p) / (1 - fewer_above) + 0.5 + 1e-9)
    return min(most, max(LEAST, wanted))


@dataclass
class AdaptiveRollouts(Curator):
    """Sets the size of a group by the success rate of its task."""

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
    """Make a curator that gives nearly solved tasks smaller groups."""
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


@dataclass(frozen=True, slots=True)
class LengthCapOptions:
    most: int = 50
    """Turns for a task that has never succeeded, and the most for any task."""
    success_above: float = 0.0

    def __post_init__(self) -> None:
        require("most", self.most, self.most >= 1, "give at least 1")


@dataclass
class LengthCap(Curator):
    """Turns ≤ the longest success of the task so far, ≤ 50. Source: DART, dynamic length."""

    options: LengthCapOptions = LengthCapOptions()
    longest: dict[int, int] = field(default_factory=dict)

    def update(self, outcome: Outcome) -> None:
        for reward, turns in zip(outcome.rewards, outcome.turns, strict=True):
            if reward > self.options.success_above and turns > 0:
                self.longest[outcome.task] = max(turns, self.longest.get(outcome.task, 0))

    def turns(self, task: int, most: int) -> int:
        return min(most, self.options.most, self.longest.get(task, self.options.most))


def length_cap(tasks: int, options: LengthCapOptions) -> Curator:
    """Make a curator that limits the turns of rollouts."""
    del tasks
    return LengthCap(options)


LENGTH_CAP = Rule(
    "length_cap",
    "curator",
    "DART, arXiv 2509.23866, dynamic trajectory length",
    length_cap,
    LengthCapOptions,
    stage="C",
)


def accept_all(tasks: int, options: NoOptions) -> Curator:
    """Make a curator that refuses nothing."""
    del tasks, options
    return Curator()


ACCEPT_ALL = Rule("accept_all", "curator", "uniform draws", accept_all, stage="C")


CURATORS = table(ACCEPT_ALL, PASS_RATE, FILTER_SOLVED, GRESO, PACED, ADAPTIVE_ROLLOUTS, LENGTH_CAP)


def curators_of(value: object, tasks: int) -> tuple[Curator, ...]:
    """Return the curators of a recipe's `curator`: a name, a table with options, or several.

    With several, all must admit a task, and the smallest group and the fewest turns apply.
    None, or `accept_all` alone, means uniform draws, with nothing to fold. Raises Refused.
    """
    named: Sequence[Any] = value if isinstance(value, list | tuple) else [value] if value else []
    chosen = [choose("curator", each, CURATORS) for each in named]
    made = [each(tasks) for each in chosen if each.rule is not ACCEPT_ALL]
    return tuple(made)
