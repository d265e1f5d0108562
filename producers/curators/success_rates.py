"""Success rates of tasks by their outcomes; older outcomes count less."""

from dataclasses import dataclass, field

from rollcall.producers.curators.curator import Outcome


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
