"""Curators that choose tasks by their success rates: sometimes solved, unsolved, or near to
learning.
"""

from dataclasses import dataclass, field
from random import Random

from rollcall.producers.curators.curator import Curator, Outcome, SuccessRates
from rollcall.schemas.rules import Rule, require


@dataclass(frozen=True, slots=True)
class PassRateOptions:
    measure: int = 8
    """The number of scored rollouts in a task's measurement."""
    again_after: int = 0
    """Versions after which a task is measured again, since the rate moves; 0: never."""
    success_above: float = 0.0

    def __post_init__(self) -> None:
        require("measure", self.measure, self.measure >= 1, "give at least 1")
        require("again_after", self.again_after, self.again_after >= 0, "give 0 (never) or more")


@dataclass
class _Measurement:
    members: int = 0
    successes: int = 0
    version: int = -1
    """The newest version when it was begun."""


@dataclass
class PassRate(Curator):
    """Keep tasks with 0 < p < 1, drawn uniformly; p is measured once, on a task's first rollouts.

    Source: MegaFlow, data filtering (58,771 tasks → 23,550). The measurement is part of the run
    (ours), so that it is in the log: a task is admitted until it has been measured.
    """

    options: PassRateOptions = PassRateOptions()
    version: int = -1
    measurements: dict[int, _Measurement] = field(default_factory=dict)

    def admit(self, task: int, version: int, random: Random) -> bool:
        known = self.measurements.get(task)
        if known is None or known.members < self.options.measure or self._expired(known):
            return True
        return 0 < known.successes < known.members

    def update(self, outcome: Outcome) -> None:
        if not outcome.rewards:
            return
        known = self.measurements.get(outcome.task)
        if known is None or self._expired(known):
            known = self.measurements[outcome.task] = _Measurement(version=self.version)
        if known.members < self.options.measure:
            known.members += len(outcome.rewards)
            known.successes += outcome.above(self.options.success_above)

    def on_version(self, version: int) -> None:
        self.version = version

    def _expired(self, known: _Measurement) -> bool:
        return 0 < self.options.again_after <= self.version - known.version


def pass_rate(tasks: int, options: PassRateOptions) -> Curator:
    """Make a curator that refuses tasks that always or never succeed."""
    del tasks
    return PassRate(options)


PASS_RATE = Rule(
    "pass_rate", "curator", "MegaFlow, data filtering", pass_rate, PassRateOptions, stage="C"
)


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


@dataclass(frozen=True, slots=True)
class PacedOptions:
    alpha: float = 1.0
    beta: float = 1.0
    keep: float = 0.5
    """The factor on the counts of a task's earlier rollouts at each further group."""
    success_above: float = 0.0

    def __post_init__(self) -> None:
        require("alpha", self.alpha, self.alpha > 0, "give a number above 0")
        require("beta", self.beta, self.beta > 0, "give a number above 0")
        require("keep", self.keep, 0 <= self.keep <= 1, "give a number in [0, 1]")


def paced_weight(p: float, options: PacedOptions) -> float:
    """Return p^α·(1 − p)^β, for p in [0, 1]. Source: PACED, the weight of a task."""
    return float(p**options.alpha * (1 - p) ** options.beta)


@dataclass
class Paced(Curator):
    """A task is drawn in proportion to its weight, and always while nothing is known of it.

    p is (s + 1) / (n + 2) of the policy's own rollouts, so no task is given up for ever (ours).
    """

    options: PacedOptions = PacedOptions()
    rates: SuccessRates = field(init=False)
    peak: float = field(init=False)

    def __post_init__(self) -> None:
        self.rates = SuccessRates(self.options.keep, self.options.success_above)
        alpha, beta = self.options.alpha, self.options.beta
        self.peak = paced_weight(alpha / (alpha + beta), self.options)

    def chance(self, task: int) -> float:
        """Return P(admit): the weight over the largest possible one."""
        p = self.rates.hedged(task)
        return 1.0 if p is None else paced_weight(p, self.options) / self.peak

    def admit(self, task: int, version: int, random: Random) -> bool:
        return random.random() < self.chance(task)

    def update(self, outcome: Outcome) -> None:
        self.rates.update(outcome)


def paced(tasks: int, options: PacedOptions) -> Curator:
    """Make a curator that prefers tasks that are solved about half of the time."""
    del tasks
    return Paced(options)


PACED = Rule("paced", "curator", "PACED, the weight of a task", paced, PacedOptions, stage="C")
