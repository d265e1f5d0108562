"""Figures of the training run, whose trainer was killed at random points."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TrainingFigures:
    """The figures of the run's record and of its trainers' checkpoints."""

    steps: int = 0
    """The steps of the branch of the newest version."""
    abandoned: int = 0
    """Versions on other branches."""
    checkpoints: int = 0
    damaged: int = 0
    """Checkpoints with a manifest that cannot be loaded; a dying process must leave none."""
    wrong_digest: int = 0
    """Checkpoints that load, but hold other weights than were announced for their version."""
    trained_again: int = 0
    differing: int = 0
    """Steps that differ in any bit when one process takes them all."""

    @property
    def ok(self) -> bool:
        wrong = self.damaged or self.wrong_digest or self.differing
        return not wrong and self.trained_again == self.steps
