"""No rollout of a task gets more turns than its longest success has taken."""

from dataclasses import dataclass, field

from rollcall.producers.curators.curator import Curator, Outcome
from rollcall.schemas.rules import Rule, require


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
