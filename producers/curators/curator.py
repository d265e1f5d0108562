"""The interface of curators: a state folded from outcomes, asked before a rollout starts.

The state is a pure fold of the run's outcomes in the order of their draws, so every reader of
the log gets the same state. A curator has no clock and no random generator: each question brings
one, seeded by the draw.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

CuratorRule = Callable[..., "Curator"]
"""(number of tasks, options) to a curator; a user's rule without options takes the number alone."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of one draw, after all its members have ended."""

    draw: int
    task: int
    """The task's number, `Draws.task_number`: the same in every question and every outcome."""
    rewards: tuple[float, ...] = ()
    """Rewards before any shaping, of the members that were scored; possibly none."""
    turns: tuple[int, ...] = ()
    """Answers of the policy in each of them."""
    version: int = -1
    """The newest version that sampled a token of it; -1 if no token was sampled."""

    def share_above(self, bound: float = 0.0) -> float:
        """Return the share of rewards above a bound; there must be rewards."""
        return self.above(bound) / len(self.rewards)

    def above(self, bound: float = 0.0) -> int:
        """Count the rewards above a bound."""
        return sum(reward > bound for reward in self.rewards)

    def equal(self) -> bool:
        """Return True if the rewards do not differ: max R − min R ≤ 1e-8."""
        return bool(self.rewards) and max(self.rewards) - min(self.rewards) <= 1e-8


class Curator:
    """Admits every task with whole groups; a rule overrides some of the methods."""

    def admit(self, task: int, version: int, random: Random) -> bool:
        """Return True if a drawn task is to be started now."""
        del task, version, random
        return True

    def update(self, outcome: Outcome) -> None:
        """Fold one outcome in; they come in the order of their draws."""

    def on_version(self, version: int) -> None:
        """Note that later outcomes were sampled by a newer version than any before."""

    def rollouts(self, task: int, most: int) -> int:
        """Return the size of the task's next group, at least 1 and at most `most`."""
        del task
        return most

    def turns(self, task: int, most: int) -> int:
        """Return the most answers of the policy in a rollout of the task, at most `most`."""
        del task
        return most


@dataclass
class SuccessRates:
    """Discounted counts per task: n ← keep·n + members, s ← keep·s + successes."""

    keep: float
    """The factor on the earlier counts at each further group; 1 forgets nothing."""
    success_above: float = 0.0
    _counts: dict[int, tuple[float, float]] = field(default_factory=dict)

    def update(self, outcome: Outcome) -> None:
        if outcome.rewards:
            successes, members = self._counts.get(outcome.task, (0.0, 0.0))
            self._counts[outcome.task] = (
                self.keep * successes + outcome.above(self.success_above),
                self.keep * members + len(outcome.rewards),
            )

    def rate(self, task: int) -> float | None:
        """Return s / n; None for a task that was never scored."""
        successes, members = self._counts.get(task, (0.0, 0.0))
        return successes / members if members else None

    def hedged(self, task: int) -> float | None:
        """Return (s + 1) / (n + 2), which is never 0 or 1; None for a task without scores."""
        successes, members = self._counts.get(task, (0.0, 0.0))
        return (successes + 1) / (members + 2) if members else None
