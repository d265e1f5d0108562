"""The scheduled learning rate, unchanged."""

from rollcall.schemas.rules import NoOptions, Rule
from rollcall.trainer.step_sizes.pace import Pace, StepStart


def scheduled(start: StepStart, options: NoOptions) -> Pace:
    """Return the factor 1. Ours."""
    del start, options
    return Pace()


SCHEDULED = Rule("scheduled", "step_size", "ours", scheduled)
