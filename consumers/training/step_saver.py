"""Saving and announcing of a step: weights, checkpoint, step, version, in this order.

The checkpoint is saved before anything is announced, and it holds the records that announce it, so
a crash in between loses neither. A version number is never used twice.

With `save = "async"` a thread with its own publisher does all of this from a snapshot, while the
next batch is trained; one version at a time, and none before the one before is fully acked. With
`announce = "early"` the records are written before the checkpoint: after a crash in between, the
announced version is abandoned, as after the loss of a checkpoint.
"""

import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from functools import partial

import structlog

from rollcall.consumers.training.announcement import StepRecords
from rollcall.consumers.training.disk_room import disk_full, is_full, needed_bytes, require_room
from rollcall.consumers.training.fence import Fence
from rollcall.consumers.training.intake import Intake
from rollcall.consumers.training.resumption import NewestOnLog
from rollcall.consumers.training.retention import Retention
from rollcall.consumers.training.weights_repair import WeightsRepair
from rollcall.producers.publisher import Publisher
from rollcall.schemas.errors import RollcallError, Unavailable, Unfit
from rollcall.schemas.headers import full_headers
from rollcall.schemas.published_weights import Published
from rollcall.schemas.store_urls import local_path
from rollcall.trainer.checkpoints import checkpoint as checkpoints
from rollcall.trainer.checkpoints.checkpoint import Checkpoint
from rollcall.trainer.checkpoints.consumption import Asked
from rollcall.trainer.checkpoints.learner_state import LearnerState
from rollcall.trainer.checkpoints.rank_files import PublishedFile
from rollcall.trainer.config.learner_config import LearnerConfig
from rollcall.trainer.config.tables import FLOAT32
from rollcall.trainer.learner.snapshot import Snapshot
from rollcall.trainer.rules.samples import Sample
from rollcall.trainer.weights.publication import Publication

FLUSH_S = 30.0

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class _Unsaved:
    """A version that is to be saved, and the state when it was made; immutable."""

    version: int
    step: int
    snapshot: Snapshot[LearnerState]
    records: StepRecords
    checkpoint: Callable[..., Checkpoint]
    """Makes the checkpoint from a learner's state, and the records as `pending`."""
    metrics: Mapping[str, float]
    awaited: frozenset[int]
    """Versions under evaluation, or whose weights may have to score tokens."""


@dataclass(eq=False)
class StepSaver:
    """Saves and announces the learner's weights, and the state for the next trainer."""

    name: str
    publisher: Publisher
    """Used by no other thread if saving has its own thread."""
    config: LearnerConfig
    intake: Intake
    highest: int
    """The highest version that was ever announced."""
    abandoned: checkpoints.Ranges
    asked: Asked
    retention: Retention
    executor: Executor
    """An executor of one thread, or one that runs inline."""
    fence: Fence
    parent: int = -1
    pending: Mapping[str, bytes] = field(default_factory=dict)
    """The records that announce the newest checkpoint."""
    stalled_s: float = 0.0
    """Seconds that training has waited for saving since this was last set to 0."""
    _written: int = -1
    """The version of the last step that was written."""
    _needed_bytes: int = 0
    """The disk space that the next version needs."""
    _unsaved: deque[_Unsaved] = field(default_factory=deque)
    """The last step, and the one before while it is being saved or a store is unreachable."""
    _saving: Future[None] | None = None
    """The saving of the first of them."""

    def __post_init__(self) -> None:
        self.announcements, self.topics = self.intake.announcements, self.intake.topics
        self.run, self.learner = self.intake.run, self.intake.learner
        self.publication = Publication(self.run.weights, self.run.publishing)
        self._weights_repair = WeightsRepair(
            self.publication, self.intake.codec, self.topics.versions
        )
        self.learner.published = self.run.publishing.precision or FLOAT32

    def begin(self, held: Checkpoint | None, seen: NewestOnLog) -> None:
        """Continue from a loaded checkpoint, or announce the initial weights of a run."""
        if held is not None:
            self._begin_again(held, seen)
            return
        self.fence.begin(None)
        self.learner.version = checkpoints.next_version(self.highest)
        self.trained((), {}, -1)
        self.save_trained(wait=True)

    def next_version(self) -> int:
        """Return a version number that was never used."""
        return checkpoints.next_version(self.highest, self.learner.version)

    def _begin_again(self, held: Checkpoint, seen: NewestOnLog) -> None:
        """Announce what was not announced. Raises RunSuperseded if another trainer has the run."""
        self.fence.begin(held)
        self.parent, self.pending = held.parent, held.pending
        repaired = self._repair_weights()
        # Compaction keeps only the newest record: servers would find just the one of the other run.
        foreign = seen.last_run_id != self.run.run_id
        if seen.highest_step_record < held.version and "step" in held.pending:
            self._publish_step(held.pending["step"], held.version)
        if seen.highest_version < held.version or foreign or repaired:
            record = self.pending["version"]
            self._publish(self.topics.versions, record, "PolicyVersion", held.version)
        self.publisher.flush(FLUSH_S)
        self.highest = max(self.highest, held.version)
        self.retention.require_bound(held.state)
        self._needed_bytes = needed_bytes(held.state, self.run)
        log.info("training_resumed", step=self.learner.steps_done, version=self.learner.version)

    def _repair_weights(self) -> bool:
        """Replace damaged weights files by full ones from the checkpoint.

        Return True if the version has to be announced again because its files are others.
        """
        repaired = self._weights_repair.torn(self.pending.get("version"), self.learner)
        if repaired is not None:
            self.pending = {**self.pending, "version": repaired}
        return repaired is not None

    def repair_lost(self) -> None:
        """Publish the newest weights again if a file is lost, and announce their location.

        Do nothing while a version is being saved. Raises Unavailable.
        """
        if self._unsaved:
            return
        repaired = self._weights_repair.lost(self.pending["version"], self.learner)
        if repaired is not None:
            self.pending = {**self.pending, "version": repaired}
            self._publish(self.topics.versions, repaired, "PolicyVersion", self.learner.version)
            self.publisher.poll()

    def trained(
        self, samples: tuple[Sample, ...], metrics: Mapping[str, float], parent: int
    ) -> None:
        """Queue a step that the learner has taken, with the present state, for `save_trained`."""
        self.parent, learner = parent, self.learner
        marks, drops = self.intake.consumption.marks(), self.intake.buffer.drops()
        later = self.config.saving.save == "async"
        self._unsaved.append(
            _Unsaved(
                learner.version,
                learner.steps_done,
                learner.snapshot() if later else Snapshot(learner.state),
                self.announcements.records(parent, samples, metrics, drops, marks),
                self._checkpoint(),
                metrics,
                self._awaited(),
            )
        )

    def _awaited(self) -> frozenset[int]:
        scoring = self.config.scoring_versions(self.learner.version)
        return frozenset({*self.intake.evaluations.awaited(), *scoring})

    def save_trained(self, *, wait: bool = False) -> None:
        """Save the queued steps. Raises Unavailable if it has to be tried again.

        With a saving thread, wait for it only if `wait` is set or another version is queued. Raises
        DiskFull; then nothing was announced that is not on the disk.
        """
        began = time.monotonic()
        try:
            while self._unsaved:
                if self._saving is None:
                    self._require_acked()
                    self._saving = self.executor.submit(self._save_and_announce, self._unsaved[0])
                if not (wait or len(self._unsaved) > 1 or self._saving.done()):
                    return
                self._conclude()
        finally:
            self.stalled_s += time.monotonic() - began

    def require_room(self) -> None:
        """Raise DiskFull if the next step could not be saved."""
        require_room(self.run, self._needed_bytes)

    def all_saved(self) -> bool:
        """Return True if every trained step is announced."""
        return not self._unsaved

    def _require_acked(self) -> None:
        """Raise Unavailable while records are in flight that only the newest checkpoint holds."""
        if self.publisher.waiting() and (missing := self.publisher.flush(FLUSH_S)):
            msg = f"{missing:,} records that announce version {self.highest} are not acked yet"
            raise Unavailable(msg)

    def _conclude(self) -> None:
        """Wait for the saving in progress; after a passing failure the next call saves again."""
        saving, self._saving = self._saving, None
        if saving is not None:
            saving.result()
        saved = self._unsaved.popleft()
        self.stalled_s += saved.snapshot.waited_s
        self.highest = max(self.highest, saved.version)
        if saved.records.step is None:
            return
        log.info(
            "step_trained",
            step=saved.step,
            version=saved.version,
            reward_mean=round(saved.metrics["reward_mean"], 4),
            staleness_mean=round(saved.metrics["staleness_mean"], 2),
            loss=round(saved.metrics["loss"], 5),
        )

    def _save_and_announce(self, unsaved: _Unsaved) -> None:
        """Write 1. weights  2. checkpoint, with the records  3. step  4. version.

        With early announcement 2 comes last. Raises RunSuperseded.
        """
        self.fence.follow()
        try:
            with unsaved.snapshot.reading() as state:
                self._save_state(unsaved, state)
        except Exception as error:
            if is_full(error):
                raise disk_full(self.run, self._needed_bytes) from error
            if isinstance(error, RollcallError):
                raise
            msg = (
                f"version {unsaved.version} could not be saved: {type(error).__name__}: {error}; "
                "the next process goes on from the newest checkpoint that is whole"
            )
            raise Unfit(msg) from error
        self.retention.collect(unsaved.awaited)

    def _published_file(self, weights: Published) -> PublishedFile:
        """Return the file and digests that a checkpoint of the same weights can reuse."""
        # With synchronous saving weights are stored twice, so that each copy can repair the other.
        once = self.config.saving.save == "async"
        sha256s = {} if self.run.publishing.rounds else weights.sha256s
        return PublishedFile(local_path(weights.newest.uri) if once else None, sha256s)

    def _save_state(self, unsaved: _Unsaved, state: LearnerState) -> None:
        self.retention.require_bound(state)
        self._needed_bytes = needed_bytes(state, self.run)
        weights = self.publication.write(unsaved.version, state.weights)
        pending = unsaved.records.encoded(self.intake.codec, self.topics, weights, self.fence.stamp)
        published = self._published_file(weights)
        save = partial(self._save, unsaved.checkpoint, state, pending, published)
        announce = partial(self._announce, unsaved.version, pending)
        for do in (announce, save) if self.config.saving.announce == "early" else (save, announce):
            do()

    def _announce(self, version: int, pending: Mapping[str, bytes]) -> None:
        if "step" in pending:
            self._publish_step(pending["step"], version)
        self._publish(self.topics.versions, pending["version"], "PolicyVersion", version)
        self.publisher.flush(FLUSH_S)

    def _publish_step(self, value: bytes, version: int) -> None:
        """Write a step once and read it back; nothing of it is announced unless it counts."""
        if self._written != version:
            self._publish(self.topics.train_steps, value, "TrainStep", version)
            self._written = version
        if missing := self.publisher.flush(FLUSH_S):
            msg = f"{missing:,} records before version {version} are not acked yet"
            raise Unavailable(msg)
        self.fence.settle(value)

    def save_again(self) -> None:
        """Write the newest checkpoint again, with what was consumed since."""
        self.save_trained(wait=True)
        self._save(self._checkpoint(), self.learner.state(), self.pending)

    def _save(
        self,
        checkpoint: Callable[..., Checkpoint],
        state: LearnerState,
        pending: Mapping[str, bytes],
        published: PublishedFile | None = None,
    ) -> None:
        self.pending = pending
        made = checkpoint(state=state, pending=pending)
        checkpoints.save(self.run.checkpoints, made, published)

    def _checkpoint(self) -> Callable[..., Checkpoint]:
        """Return a maker of the present checkpoint, which needs `state` and `pending`."""
        buffer, ledger = self.intake.buffer, self.intake.ledger
        return partial(
            Checkpoint,
            parent=self.parent,
            config_digest=self.config.digest(),
            consumed=self.intake.consumption.marks(),
            recent=buffer.recent(),
            drops=buffer.drops(),
            abandoned=self.abandoned,
            used=buffer.used,
            book=ledger.book(self.intake.unaccounted, self.asked.marks),
            replay=buffer.replay_book(),
            leaders=(*self.intake.leaders(), *self.asked.leaders),
        )

    def _publish(self, topic: str, value: bytes, kind: str, version: int) -> None:
        ce_id = f"{self.run.policy_id}/{version}"
        headers = full_headers(kind, ce_id, self.name, self.run.policy_id, self.run.run_id)
        self.publisher.send(topic, self.run.policy_id, value, headers=headers)
