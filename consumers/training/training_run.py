"""What one training run is."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from consumers.log.protocols import TopicPartition
from producers.admission import AdmissionRule
from trainer.publication import Publishing


@dataclass(frozen=True, slots=True)
class TrainingRun:
    """Its names, its folder, and the rule that it keeps rollouts in the air by."""

    run_id: str
    policy_id: str
    directory: Path
    """Checkpoints lie here, and weights that are published to no URL."""
    starts: Mapping[TopicPartition, int]
    """Where every topic ended when the run was made: nothing of the run lies before."""
    scoring_id: str
    """Whose rewards are trained on."""
    rule: AdmissionRule
    """How many rollouts may be in the air."""
    steps: int = 0
    """No rollouts are admitted beyond this many steps; 0 is without end."""
    admits: bool = True
    """Whether its trainer asks for the rollouts; of several policies in a rollout one does."""
    others: Mapping[str, int] = field(default_factory=dict)
    """The other policies that its rollouts are sampled from, and how many steps each takes."""
    barrier: bool = False
    """Whether new rollouts wait until all policies stand at the same step."""
    publishing: Publishing = field(default_factory=Publishing)
    """How its weights are published."""

    @property
    def checkpoints(self) -> Path:
        return self.directory / "checkpoints"

    @property
    def weights(self) -> str:
        """Where its weights are published: a directory, or a URL."""
        return self.publishing.place(self.directory)
