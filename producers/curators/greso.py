"""Tasks whose groups repeatedly have no variance are drawn less often, but never stop."""

from dataclasses import dataclass, field
from random import Random

from rollcall.producers.curators.curator import Curator, Outcome
from rollcall.schemas.rules import Rule, require

STEP = 0.01
LEAST, MOST = 0.01, 0.99


@dataclass(frozen=True, slots=True)
class GresoOptions:
    easy: float = 0.5
    """Initial p of tasks that always succeed."""
    hard: float = 0.5
    """Initial p of tasks that always fail."""
    easy_floor: float = 0.10
    hard_floor: float = 0.40
    easy_target: float = 0.083
    """The target share of groups that are easy ones of zero variance."""
    hard_target: float = 0.167
    epoch: int = 0
    """The number of groups after which p begins to change; 0: the number of tasks."""

    def __post_init__(self) -> None:
        for key in ("easy", "hard"):
            value = getattr(self, key)
            require(key, value, LEAST <= value <= MOST, f"give a number in [{LEAST}, {MOST}]")
        for key in ("easy_floor", "hard_floor", "easy_target", "hard_target"):
            value = getattr(self, key)
            require(key, value, 0 <= value <= 1, "give a number in [0, 1]")
        require("epoch", self.epoch, self.epoch >= 0, "give 0 (as many as tasks) or more")


@dataclass(frozen=True, slots=True)
class _Dull:
    """The number of zero-variance groups of a task in a row, and their side."""

    groups: int
    easy: bool


@dataclass
class Greso(Curator):
    """P(admit) = 1 if z = 0, else max(p^z, floor), with p and floor of its side.

    z counts the task's groups of zero variance in a row: a spread sets 0, a change from easy
    (mean > 0.5) to hard or back sets 1. With each new version, after one epoch: p −= 0.01
    if the side's share of the window has reached its target, else p += 0.01.

    Source: GRESO, arXiv 2506.02177, as in AstraFlow; seeded here, which the public code is not.
    """

    tasks: int
    options: GresoOptions = GresoOptions()
    dull: dict[int, _Dull] = field(default_factory=dict)
    seen: int = 0
    window: int = 0
    """Groups since the last version."""
    window_easy: int = 0
    window_hard: int = 0
    easy: float = field(init=False)
    """The present p of this side."""
    hard: float = field(init=False)

    def __post_init__(self) -> None:
        self.easy, self.hard = self.options.easy, self.options.hard

    def chance(self, task: int) -> float:
        """Return P(admit)."""
        known = self.dull.get(task)
        if known is None:
            return 1.0
        if known.easy:
            return max(self.easy**known.groups, self.options.easy_floor)
        return max(self.hard**known.groups, self.options.hard_floor)

    def admit(self, task: int, version: int, random: Random) -> bool:
        return random.random() < self.chance(task)

    def update(self, outcome: Outcome) -> None:
        if not outcome.rewards:
            return
        self.seen += 1
        self.window += 1
        if not outcome.equal():
            self.dull.pop(outcome.task, None)
            return
        easy = sum(outcome.rewards) / len(outcome.rewards) > 0.5
        self.window_easy += easy
        self.window_hard += not easy
        before = self.dull.get(outcome.task)
        in_a_row = before.groups if before and before.easy == easy else 0
        self.dull[outcome.task] = _Dull(in_a_row + 1, easy)

    def on_version(self, version: int) -> None:
        if self.window and self.seen >= (self.options.epoch or self.tasks):
            options, window = self.options, self.window
            self.easy = _moved(self.easy, self.window_easy / window >= options.easy_target)
            self.hard = _moved(self.hard, self.window_hard / window >= options.hard_target)
        self.window = self.window_easy = self.window_hard = 0


def greso(tasks: int, options: GresoOptions) -> Curator:
    """Make a curator that draws tasks without variance less often."""
    return Greso(tasks, options)


def _moved(p: float, too_many: bool) -> float:
    return min(MOST, max(LEAST, p - STEP if too_many else p + STEP))


GRESO = Rule(
    "greso",
    "curator",
    "GRESO, arXiv 2506.02177, as in AstraFlow",
    greso,
    GresoOptions,
    stage="C",
)
