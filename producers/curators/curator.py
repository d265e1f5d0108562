"""What a curator is: a state that outcomes are folded into, asked before a rollout is started.

The law: the state is a pure fold of the run's outcomes in the order of their draws, so whoever
reads the log again comes to the same state. No clock and no generator of its own: chance comes in
with each question, seeded by the draw.
"""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

CuratorRule = Callable[..., "Curator"]
"""(number of tasks, options) to a curator; a user's without options takes the number alone."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one draw: all its members have ended."""

    draw: int
    task: int
    """The task's number, `Draws.task_number`: the same in every question and every outcome."""
    rewards: tuple[float, ...] = ()
    """As scored, before any shaping, of the members that were scored; it may be none."""
    turns: tuple[int, ...] = ()
    """Answers of the policy in each of them."""
    version: int = -1
    """The newest weights that sampled a token of it; -1 where no token was."""

    def share_above(self, bound: float = 0.0) -> float:
        """The share of rewards above a bound; there must be rewards."""
        return self.above(bound) / len(self.rewards)

    def above(self, bound: float = 0.0) -> int:
        """How many rewards lie above a bound."""
        return sum(reward > bound for reward in self.rewards)

    def equal(self) -> bool:
        """Whether the rewards say nothing about each other: max R − min R ≤ 1e-8."""
        return bool(self.rewards) and max(self.rewards) - min(self.rewards) <= 1e-8


class Curator:
    """One that lets every task through, whole; a rule overrides what it decides."""

    def admit(self, task: int, version: int, random: Random) -> bool:
        """Whether a task that was drawn is worth a group now."""
        del task, version, random
        return True

    def update(self, outcome: Outcome) -> None:
        """Fold one outcome in; they come in the order of their draws."""

    def on_version(self, version: int) -> None:
        """Outcomes from here on were sampled by newer weights than any before."""

    def rollouts(self, task: int, most: int) -> int:
        """How many members a group of the task is given, at least 1 and at most `most`."""
        del task
        return most

    def turns(self, task: int, most: int) -> int:
        """How many answers of the policy a rollout of the task may take, at most `most`."""
        del task
        return most
