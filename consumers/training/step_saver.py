"""What was learnt, saved and announced: weights, checkpoint, version, step, in this order.

The checkpoint is saved before anything is announced, and it holds the records that announce it, so
a crash in between loses neither. A version number is never used twice.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import structlog

from consumers.training.intake import Intake
from consumers.training.resumption import NewestOnLog
from producers.publisher import Publisher
from schemas.errors import WireError
from schemas.headers import full_headers
from schemas.messages import Consumed, PolicyVersion
from schemas.weights import write_weights
from trainer import checkpoint as checkpoints
from trainer import weights_files
from trainer.checkpoint import Checkpoint
from trainer.config import LearnerConfig
from trainer.samples import Sample

KEEP_CHECKPOINTS = 3
FLUSH_S = 30.0

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class _Unsaved:
    """A step that was taken."""

    samples: tuple[Sample, ...]
    metrics: Mapping[str, float]
    parent: int


@dataclass(eq=False)
class StepSaver:
    """Saves and announces the learner's weights, and all that the next trainer goes on with."""

    name: str
    publisher: Publisher
    config: LearnerConfig
    intake: Intake
    highest: int
    """The highest version that was ever announced."""
    abandoned: checkpoints.Ranges
    asked_from: tuple[Consumed, ...]
    """Where the requests lie that the next trainer has to read."""
    parent: int = -1
    pending: Mapping[str, bytes] = field(default_factory=dict)
    """The records that announce the newest checkpoint."""
    _unsaved: _Unsaved | None = None
    """The last step, where a store that is away has kept it from being saved and announced."""

    def __post_init__(self) -> None:
        self.words, self.topics = self.intake.words, self.intake.words.topics
        self.run, self.learner = self.intake.run, self.intake.learner

    def begin(self, held: Checkpoint | None, seen: NewestOnLog) -> None:
        """Go on from a checkpoint that was loaded, or announce the weights of a run's start."""
        if held is not None:
            self._begin_again(held, seen)
            return
        self.learner.version = checkpoints.next_version(self.highest)
        self._save_and_announce({}, (), -1)

    def next_version(self) -> int:
        """A number that nobody has used."""
        return checkpoints.next_version(self.highest, self.learner.version)

    def _begin_again(self, held: Checkpoint, seen: NewestOnLog) -> None:
        """Announce what was not announced."""
        self._mend_weights(held.pending.get("version"))
        self.parent, self.pending = held.parent, held.pending
        # Compaction leaves the newest record alone: a foreign one would be all that servers find.
        if seen.highest_version < held.version or seen.last_run_id != self.run.run_id:
            self._publish(self.topics.versions, held.pending["version"], "PolicyVersion")
        if seen.highest_step_record < held.version and "step" in held.pending:
            self._publish(self.topics.train_steps, held.pending["step"], "TrainStep")
        self.publisher.flush(FLUSH_S)
        self.highest = max(self.highest, held.version)
        log.info("training_resumed", step=self.learner.steps_done, version=self.learner.version)

    def _mend_weights(self, announcing: bytes | None) -> None:
        """The checkpoint has what servers read: where their file is torn, it is made again."""
        try:
            file = self.intake.codec.decode(announcing, PolicyVersion).full
        except WireError:
            file = None
        version = self.learner.version
        if weights_files.mend(self.run.weights, file, version, self.learner.tensors()):
            log.warning("weights_mended", version=version)

    def trained(
        self, samples: tuple[Sample, ...], metrics: Mapping[str, float], parent: int
    ) -> None:
        """Save and announce a step that the learner has taken; raises Unavailable."""
        self._unsaved = _Unsaved(samples, metrics, parent)
        self.save_trained()

    def save_trained(self) -> None:
        """Nothing goes on before the last step is saved; raises Unavailable."""
        if self._unsaved is None:
            return
        metrics = self._unsaved.metrics
        self._save_and_announce(metrics, self._unsaved.samples, self._unsaved.parent)
        self._unsaved = None
        log.info(
            "step_trained",
            step=self.learner.steps_done,
            version=self.learner.version,
            reward_mean=round(metrics["reward_mean"], 4),
            staleness_mean=round(metrics["staleness_mean"], 2),
            loss=round(metrics["loss"], 5),
        )

    def _save_and_announce(
        self, metrics: Mapping[str, float], samples: Sequence[Sample], parent: int
    ) -> None:
        """1. weights  2. checkpoint, with the records to come  3. version  4. step."""
        self.parent = parent
        learner, buffer = self.learner, self.intake.buffer
        weights = write_weights(str(self.run.weights), learner.version, learner.tensors())
        marks = self.intake.consumption.marks()
        pending = {"version": self.words.version(parent, weights, marks)}
        if samples:
            pending["step"] = self.words.step(
                parent, samples, metrics, buffer.drops(), weights.weights_digest
            )
        self._save(pending)
        self._publish(self.topics.versions, pending["version"], "PolicyVersion")
        if samples:
            self._publish(self.topics.train_steps, pending["step"], "TrainStep")
        self.publisher.flush(FLUSH_S)
        self.highest = learner.version
        keep_every = self.config.checkpoint_keep_every
        checkpoints.prune(self.run.checkpoints, KEEP_CHECKPOINTS, keep_every)
        awaited = self.intake.evaluations.awaited()
        scoring = self.config.scoring_versions(learner.version)
        weights_files.prune(self.run.weights, {*awaited, *scoring})

    def save_again(self) -> None:
        """Write the newest checkpoint once more, with what was consumed since."""
        self._save(self.pending)

    def _save(self, pending: Mapping[str, bytes]) -> None:
        """Write the checkpoint of what is there; `pending` are the records that announce it."""
        self.pending = pending
        buffer, accounts = self.intake.buffer, self.intake.accounts
        checkpoints.save(
            self.run.checkpoints,
            Checkpoint(
                self.learner.state(),
                self.parent,
                self.config.digest(),
                self.intake.consumption.marks(),
                (*buffer.recent(), *accounts.left()),
                buffer.drops(),
                self.abandoned,
                pending,
                buffer.used,
                accounts.book(self.intake.unaccounted, self.asked_from),
                buffer.replay.book(),
            ),
        )

    def _publish(self, topic: str, value: bytes, kind: str) -> None:
        ce_id = f"{self.run.policy_id}/{self.learner.version}"
        headers = full_headers(kind, ce_id, self.name, self.run.policy_id, self.run.run_id)
        self.publisher.send(topic, self.run.policy_id, value, headers=headers)
