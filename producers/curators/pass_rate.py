"""Only tasks that are sometimes solved are drawn."""

from dataclasses import dataclass, field
from random import Random

from rollcall.producers.curators.curator import Curator, Outcome
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
