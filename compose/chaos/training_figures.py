"""What became of the training run, whose trainer was killed anywhere."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TrainingFigures:
    """Of the run's record and of the checkpoints that its trainers left."""

    steps: int = 0
    """Of the branch that the newest version descends from."""
    abandoned: int = 0
    """Versions on other branches."""
    checkpoints: int = 0
    damaged: int = 0
    """Checkpoints with a manifest that cannot be loaded: a process that dies leaves none."""
    wrong_digest: int = 0
    """Checkpoints that load, and hold other weights than were announced of their version."""
    trained_again: int = 0
    differing: int = 0
    """Steps that come out otherwise, in any bit, where one process takes them all."""

    @property
    def ok(self) -> bool:
        wrong = self.damaged or self.wrong_digest or self.differing
        return not wrong and self.trained_again == self.steps
