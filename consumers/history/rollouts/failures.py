"""The failures of a run's rollouts, counted by code, with an example of each."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from rollcall.schemas.messages import ScoredTrajectory, Trajectory

NO_REWARD = "no_reward"
"""The code of a rollout that finished without a reward from its scorer."""
NAMED = 3
"""The number of codes that are named in words; the others are counted together."""
NO_EXAMPLES: Mapping[str, str] = {}
NO_FAILURES = ("finished", "cancelled")
"""Statuses that are no failures: the program or a user ended the rollout."""


def has_failed(trajectory: Trajectory) -> bool:
    """Return True if a rollout ended otherwise than by its program or a user."""
    return trajectory.status not in NO_FAILURES


class Failure(NamedTuple):
    """The failure of one rollout, or the reason why it has no reward."""

    code: str
    rollout_id: str
    reason: str


def failure_of(scored: ScoredTrajectory) -> Failure | None:
    """Return why a rollout failed, or why it has no reward; else None."""
    trajectory = scored.trajectory
    if has_failed(trajectory):
        code = trajectory.code or trajectory.status
        return Failure(code, trajectory.rollout_id, trajectory.reason)
    if trajectory.status == "finished" and scored.total is None:
        return Failure(NO_REWARD, trajectory.rollout_id, scored.reason)
    return None


@dataclass(slots=True)
class Failures:
    """A fold of scored trajectories."""

    by_code: Counter[str] = field(default_factory=Counter)
    examples: dict[str, Failure] = field(default_factory=dict)
    """The first failure with each code."""

    @property
    def count(self) -> int:
        return self.by_code.total()

    def take(self, scored: ScoredTrajectory) -> bool:
        """Count a record if it is a failure, and tell whether it is one."""
        failure = failure_of(scored)
        if failure is not None:
            self.by_code[failure.code] += 1
            self.examples.setdefault(failure.code, failure)
        return failure is not None

    def __str__(self) -> str:
        """`3,728: unknown_environment (98 %), e.g. ID; deadline (2 %), e.g. ID`."""
        examples = {code: failure.rollout_id for code, failure in self.examples.items()}
        words = describe_shares(self.by_code, examples)
        return f"{self.count:,}: {'; '.join(words)}" if words else "0"

    def why(self) -> str:
        """Return the reason of the most frequent code's example; empty if there are no failures."""
        code = next((code for code, _ in self.by_code.most_common(1)), None)
        return "" if code is None else self.examples[code].reason

    def plain(self) -> dict[str, dict[str, int | str]]:
        """Return by code the count, with the id and the reason of an example."""
        return {
            code: {
                "rollouts": count,
                "example": self.examples[code].rollout_id,
                "reason": self.examples[code].reason,
            }
            for code, count in self.by_code.most_common()
        }


def describe_shares(counts: Counter[str], examples: Mapping[str, str] = NO_EXAMPLES) -> list[str]:
    """Return `stale (98 %)` for the most frequent reasons, with an example if there is one.

    The others are counted together, last.
    """
    total, named = counts.total(), counts.most_common(NAMED)
    words = [
        f"{reason} ({_percent(count, total)})"
        + (f", e.g. {examples[reason]}" if reason in examples else "")
        for reason, count in named
    ]
    if others := total - sum(count for _, count in named):
        words.append(f"others ({_percent(others, total)})")
    return words


def _percent(part: int, whole: int) -> str:
    """Format a share; never as 0 or 100 % unless it is exact."""
    if part == whole:
        return "100 %"
    return f"{min(99, max(1, round(100 * part / whole)))} %"
