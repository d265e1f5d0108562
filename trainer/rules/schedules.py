"""Learning-rate schedules: functions of (steps done, all steps) to a factor of the rate."""

from collections.abc import Callable

from rollcall.schemas.rules import Rule, table

Schedule = Callable[..., float]


def linear(done: int, steps: int) -> float:
    """max(0.1, 1 − done/steps)."""
    return max(0.1, 1 - done / steps)


def constant(done: int, steps: int) -> float:
    """The factor 1 at every step."""
    return 1.0


SCHEDULES = table(
    Rule("linear", "schedule", "ours", linear), Rule("constant", "schedule", "ours", constant)
)
