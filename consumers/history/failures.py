"""Why rollouts of a run failed: counted by code, with an example of each."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from schemas.messages import ScoredTrajectory, Trajectory

NO_REWARD = "no_reward"
"""The code of a rollout that finished, and that its scorer gave no number."""
NAMED = 3
"""So many codes are named in words; the others are counted together."""
NO_EXAMPLES: Mapping[str, str] = {}
NO_FAILURES = ("finished", "cancelled")
"""How a rollout ends that has not failed: by itself, or since somebody ended it."""


def has_failed(trajectory: Trajectory) -> bool:
    """Whether a rollout came to an end that neither it nor a person chose."""
    return trajectory.status not in NO_FAILURES


class Failure(NamedTuple):
    """Why one rollout is worth nothing."""

    code: str
    rollout_id: str
    reason: str


def failure_of(scored: ScoredTrajectory) -> Failure | None:
    """Why a rollout failed, or why it has no reward; None of any other."""
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
    """By code the first that failed so."""

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
        words = shares(self.by_code, examples)
        return f"{self.count:,}: {'; '.join(words)}" if words else "0"

    def why(self) -> str:
        """What the example of the commonest code says; empty where none failed."""
        code = next((code for code, _ in self.by_code.most_common(1)), None)
        return "" if code is None else self.examples[code].reason

    def plain(self) -> dict[str, dict[str, int | str]]:
        """By code how many, with the id and the reason of one."""
        return {
            code: {
                "rollouts": count,
                "example": self.examples[code].rollout_id,
                "reason": self.examples[code].reason,
            }
            for code, count in self.by_code.most_common()
        }


def shares(counts: Counter[str], examples: Mapping[str, str] = NO_EXAMPLES) -> list[str]:
    """Return `stale (98 %)` for the commonest reasons, with an example where there is one.

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
    """A share without a figure that would say all, or none, of what is only almost so."""
    if part == whole:
        return "100 %"
    return f"{min(99, max(1, round(100 * part / whole)))} %"
