"""The step is as large as the schedule says."""

from schemas.rules import NoOptions, Rule
from trainer.step_sizes.pace import Pace, StepStart


def scheduled(start: StepStart, options: NoOptions) -> Pace:
    """1, whatever the batch. Ours."""
    del start, options
    return Pace()


SCHEDULED = Rule("scheduled", "step_size", "ours", scheduled)
