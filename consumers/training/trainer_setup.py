"""The parts of a trainer, and the state that it resumes from: newest checkpoint and log."""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial

import structlog

from rollcall.consumers.heldout import HeldOut
from rollcall.consumers.log.protocols import Log
from rollcall.consumers.loop.inline_executor import InlineExecutor
from rollcall.consumers.training.announcement import Announcements
from rollcall.consumers.training.batch_training import BatchTraining
from rollcall.consumers.training.cancels import Cancels
from rollcall.consumers.training.evaluations import Evaluations
from rollcall.consumers.training.fence import Fence
from rollcall.consumers.training.group_admission import GroupAdmission
from rollcall.consumers.training.intake import Intake
from rollcall.consumers.training.lost_offsets import LostOffsets
from rollcall.consumers.training.other_policies import OtherPolicies
from rollcall.consumers.training.recorded_groups import EarlierRun
from rollcall.consumers.training.resumption import Resumption, RunLog
from rollcall.consumers.training.retention import Retention, VersionsInUseReader
from rollcall.consumers.training.rollout_continuation import Continue, RolloutContinuation
from rollcall.consumers.training.stall_detector import StallDetector
from rollcall.consumers.training.step_balance import StepBalance
from rollcall.consumers.training.step_saver import StepSaver
from rollcall.consumers.training.streamed_step import StreamedStep
from rollcall.consumers.training.trainer import Trainer
from rollcall.consumers.training.training_run import TrainingRun
from rollcall.producers.admission import Draws
from rollcall.producers.curators.curator import Curator
from rollcall.producers.curators.curriculum import Curriculum
from rollcall.producers.publisher import Publisher
from rollcall.producers.submit import Submitter
from rollcall.schemas.codec import Codec
from rollcall.schemas.errors import Refused, Unavailable
from rollcall.schemas.messages import RolloutRequest
from rollcall.schemas.topics import Topics
from rollcall.trainer.checkpoints import checkpoint as checkpoints
from rollcall.trainer.checkpoints.checkpoint import Checkpoint
from rollcall.trainer.checkpoints.consumption import Consumption
from rollcall.trainer.config.curation import Curation
from rollcall.trainer.config.learner_config import LearnerConfig
from rollcall.trainer.curation.borrowed_groups import Mark
from rollcall.trainer.curation.borrowed_samples import Reencode
from rollcall.trainer.curation.buffer import Buffer
from rollcall.trainer.curation.group_gate import group_filters, worth_training
from rollcall.trainer.curation.reading import Reading
from rollcall.trainer.learner.step import Learner
from rollcall.trainer.weights import weights_files

log = structlog.get_logger()


@dataclass(frozen=True)
class TrainerSetup:
    """All that a trainer is made of; nothing is read or written before `open`."""

    name: str
    log: Log
    codec: Codec
    topics: Topics
    publisher: Publisher
    learner: Learner
    config: LearnerConfig
    run: TrainingRun
    draws: Draws
    heldout: HeldOut | None = None
    curators: Sequence[Curator] = ()
    """The rules that choose the tasks; without them tasks are drawn uniformly."""
    clock: Callable[[], float] = field(default=time.monotonic, kw_only=True)
    in_use: VersionsInUseReader = field(kw_only=True)
    """Reads from the log which versions are in use."""
    continue_: Continue | None = field(default=None, kw_only=True)
    """Makes the requests that continue cancelled rollouts; needed if rollouts may be cancelled."""
    reencode: Reencode | None = field(default=None, kw_only=True)
    """Reads shared text of others; needed if some is shared."""
    reading: Reading = field(default=Reading(), kw_only=True)
    """The limits of what the policy can read; unknown for a learner without a model."""
    executor: Executor = field(default_factory=InlineExecutor, kw_only=True)
    """Saves steps; with a thread, while the next batch is trained."""
    accept_truncation: bool = field(default=False, kw_only=True)
    """True to continue without consumed records that the log has lost."""

    def open(self) -> Trainer:
        """Load the newest checkpoint, or make version 0; then announce what was not announced.

        Raises JournalGone if the log has lost records and `accept_truncation` is not set, and
        RunSuperseded if another trainer continued the run.
        """
        latest = checkpoints.load_latest(self.run.checkpoints)
        marks = LostOffsets(self.log, self.topics, self.run, latest.checkpoint)
        beginning = marks.beginning(accept=self.accept_truncation)
        setup = replace(self, run=beginning.run)
        trainer = setup._resumed(replace(latest, checkpoint=beginning.held))
        trainer.stall_detector.has_lost = bool(beginning.lost)
        with suppress(Unavailable):  # every turn asks again
            trainer.admission.evaluate_if_due()
        return trainer

    def _resumed(self, latest: checkpoints.LatestCheckpoint) -> Trainer:
        """Continue from a checkpoint, or without one from the beginning of the run."""
        past = RunLog(self.log, self.codec, self.topics, self.run)
        weights_files.clear_temporary(self.run.weights)
        announced = past.announced()
        for reason in latest.passed_over:
            log.warning("checkpoint_skipped", reason=reason)
        held = latest.checkpoint
        curriculum = Curriculum(self.draws, self.curators, self.run.scoring_id)
        known = past.known(held, curriculum)
        if held is not None and latest.path is not None:
            checkpoints.require_recipe(latest.path, self.config.digest(), checkpoints.CHANGED)
        # Cancels of the process that saved the checkpoint may have been lost when it ended.
        cut_off = known.ledger.unended() if self.config.cuts_off else []
        highest = max(announced.highest_version, announced.highest_step_record)
        newest = max(highest, held.version if held else -1)
        weights_files.clear_unannounced(self.run.weights, newest)
        abandoned = checkpoints.abandon(held.abandoned, held.version, highest) if held else ()
        admission = self._admission(curriculum, known)
        intake = self._intake(past, admission, held, abandoned)
        continuing = self._continuing(intake.buffer, admission) if self.config.cuts_off else None
        admission.continuing = continuing
        saver = self._saver(intake, highest, abandoned, known)
        saver.begin(held, announced)
        admission.resume(known, cut_off)
        return self._trainer(past, intake, admission, saver)

    def _admission(self, curriculum: Curriculum, known: Resumption) -> GroupAdmission:
        others = OtherPolicies(self.log, self.codec, self.topics, self.run, self.clock)
        submitter = Submitter(self.publisher, self.codec, self.topics, source=self.name)

        def publish(*requests: RolloutRequest) -> None:
            """Request evaluations with the current versions of the other policies."""
            submitter.publish(*map(others.pinned, requests))

        return GroupAdmission(
            self.run,
            self.config,
            self.learner,
            known.ledger,
            curriculum,
            Evaluations(self.heldout, publish, known.evaluations),
            others,
            submitter,
            Cancels(self.publisher, self.codec, self.topics, self.name),
        )

    def _intake(
        self,
        past: RunLog,
        admission: GroupAdmission,
        held: Checkpoint | None,
        abandoned: checkpoints.Ranges,
    ) -> Intake:
        """Return the intake at a checkpoint, and load the learner from it.

        Raises Refused if groups of an earlier run are configured and there are none.
        """
        run, learner = self.run, self.learner
        curation = replace(
            self.config.curation(run.run_id, run.policy_id, abandoned),
            vocabulary=learner.vocabulary,
            context=learner.context,
            joins=not run.admits,
        )
        scored, marks = self.topics.scored, held.consumed if held else ()
        consumption = Consumption(scored, marks, self.log.topic_id(scored))
        recorded = self._recorded(curation, held.replay.recorded if held else ())
        rule = self.config.replay
        buffer = Buffer(curation, admission.ledger, rule, recorded, self.reencode, self.clock)
        announcements = Announcements(self.codec, self.topics, run, learner)
        intake = Intake(
            announcements, admission.curriculum, buffer, consumption, admission.evaluations
        )
        if held is not None:
            learner.load(held.state)
            intake.restore(held)
            past.replay(buffer, held.replay)
        return intake

    def _recorded(self, curation: Curation, mark: Mark) -> EarlierRun | None:
        """Return the groups of an earlier run from the checkpoint's position; None without any.

        Raises Refused if there are none.
        """
        rule = self.config.recorded
        if rule is None:
            return None
        return EarlierRun(
            self.log,
            self.codec,
            self.topics.scored,
            self.run.scoring_id,
            rule,
            curation,
            self.run.starts,
            partial(worth_training, group_filters(curation)),
            mark,
        )

    def _continuing(self, buffer: Buffer, admission: GroupAdmission) -> RolloutContinuation:
        """Return the part that continues cancelled rollouts. Raises Refused if none can be."""
        why = "batch" if self.config.refills else "over_provision"
        if not self.run.admits or self.run.others:
            msg = f"{why} cancels rollouts of a run with one policy; take it out of [learner]"
            raise Refused(msg)
        if self.continue_ is None:
            msg = f"{why} needs a log to go on with cancelled rollouts from; give continue_"
            raise Refused(msg)
        return RolloutContinuation(
            buffer,
            admission.ledger,
            admission.cancels,
            admission.submitter,
            self.continue_,
            self.clock,
        )

    def _saver(
        self, intake: Intake, highest: int, abandoned: checkpoints.Ranges, known: Resumption
    ) -> StepSaver:
        later = self.config.saving.save == "async"
        return StepSaver(
            self.name,
            self.log.publisher() if later else self.publisher,
            self.config,
            intake,
            highest,
            abandoned,
            known.asked,
            Retention(self.run, self.config, self.in_use),
            self.executor if later else InlineExecutor(),
            Fence(self.log, self.codec, self.topics, self.run, self.name),
        )

    def _trainer(
        self, past: RunLog, intake: Intake, admission: GroupAdmission, saver: StepSaver
    ) -> Trainer:
        balance = StepBalance(self.clock)
        balance.begin(intake.buffer.drops())
        streamed = StreamedStep(self.learner, intake.buffer, self.clock)
        return Trainer(
            self.config,
            self.learner,
            self.publisher,
            intake.reader(self.log, self.topics.scored),
            past,
            intake,
            admission,
            saver,
            BatchTraining(self.config, intake, saver, balance, streamed, self.clock, self.reading),
            StallDetector(admission, intake, self.clock),
            self.clock,
        )
