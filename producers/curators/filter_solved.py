"""Solved tasks are not drawn any more."""

from dataclasses import dataclass, field
from random import Random

from rollcall.producers.curators.curator import Curator, Outcome
from rollcall.schemas.rules import Rule, require


@dataclass(frozen=True, slots=True)
class FilterSolvedOptions:
    keep: float = 0.9
    """The share of the old estimate that is kept at each group."""
    solved_at: float = 0.95

    def __post_init__(self) -> None:
        require("keep", self.keep, 0 <= self.keep < 1, "give a number in [0, 1)")
        require("solved_at", self.solved_at, 0 < self.solved_at <= 1, "give a number in (0, 1]")


@dataclass
class FilterSolved(Curator):
    """q ← 0.9·q + 0.1·(share of rewards > 0), prior 0; a task is admitted while q < 0.95.

    Source: AstraFlow, data curation. A task needs 29 groups, all correct, to be dropped.
    """

    options: FilterSolvedOptions = FilterSolvedOptions()
    q: dict[int, float] = field(default_factory=dict)

    def admit(self, task: int, version: int, random: Random) -> bool:
        return self.q.get(task, 0.0) < self.options.solved_at

    def update(self, outcome: Outcome) -> None:
        if outcome.rewards:
            keep, before = self.options.keep, self.q.get(outcome.task, 0.0)
            self.q[outcome.task] = keep * before + (1 - keep) * outcome.share_above()


def filter_solved(tasks: int, options: FilterSolvedOptions) -> Curator:
    """Make a curator that refuses solved tasks."""
    del tasks
    return FilterSolved(options)


FILTER_SOLVED = Rule(
    "filter_solved",
    "curator",
    "AstraFlow, data curation",
    filter_solved,
    FilterSolvedOptions,
    stage="C",
)
