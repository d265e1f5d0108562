"""The description of one training run."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from rollcall.consumers.log.protocols import TopicPartition
from rollcall.producers.admission import AdmissionRule
from rollcall.trainer.weights.publication import Publishing


@dataclass(frozen=True, slots=True)
class TrainingRun:
    """The names, the folder and the admission rule of a run."""

    run_id: str
    policy_id: str
    directory: Path
    """Folder of the checkpoints, and of weights that are published to no URL."""
    starts: Mapping[TopicPartition, int]
    """The end of every topic when the run was made; all records of the run are above."""
    scoring_id: str
    """The scoring whose rewards are trained on."""
    rule: AdmissionRule
    """The rule that bounds the rollouts in flight."""
    steps: int = 0
    """No rollouts are admitted beyond this many steps; 0 means no end."""
    admits: bool = True
    """True if this trainer requests the rollouts; with several policies only one does."""
    others: Mapping[str, int] = field(default_factory=dict)
    """The other policies that its rollouts are sampled from, and the number of steps of each."""
    barrier: bool = False
    """True if new rollouts wait until all policies are at the same step."""
    publishing: Publishing = field(default_factory=Publishing)
    """The form and place in which weights are published."""

    @property
    def checkpoints(self) -> Path:
        return self.directory / "checkpoints"

    @property
    def weights(self) -> str:
        """Return where its weights are published: a directory, or a URL."""
        return self.publishing.place(self.directory)
