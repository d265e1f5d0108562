"""Tasks are drawn by how near the policy is to learning them."""

from dataclasses import dataclass, field
from random import Random

from rollcall.producers.curators.curator import Curator, Outcome
from rollcall.producers.curators.success_rates import SuccessRates
from rollcall.schemas.rules import Rule, require


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
