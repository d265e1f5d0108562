"""The training group of one policy: read trajectories, train, publish, keep rollouts in flight.

Progress is kept in the checkpoint: it holds weights, optimiser, RNG and consumed offsets, and a
restart reads on from there. So the trainer reads with `assign`, not as a group member.
"""

import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import dataclass, field, replace

import structlog

from rollcall.consumers.heldout import HeldOut
from rollcall.consumers.log.protocols import Log, Record
from rollcall.consumers.loop.inline_executor import InlineExecutor
from rollcall.consumers.training.announcement import Announcements
from rollcall.consumers.training.batch_training import BatchTraining
from rollcall.consumers.training.cancels import REDUNDANT, Cancels
from rollcall.consumers.training.evaluations import Evaluations
from rollcall.consumers.training.fence import Fence
from rollcall.consumers.training.group_admission import GroupAdmission
from rollcall.consumers.training.lost_offsets import LostOffsets
from rollcall.consumers.training.other_policies import OtherPolicies
from rollcall.consumers.training.restored_intake import IntakeMaker
from rollcall.consumers.training.resumption import RunLog
from rollcall.consumers.training.retention import Retention, VersionsInUseReader
from rollcall.consumers.training.rollout_continuation import Continue, RolloutContinuation
from rollcall.consumers.training.stall_detector import StallDetector
from rollcall.consumers.training.step_balance import StepBalance
from rollcall.consumers.training.step_saver import FLUSH_S, StepSaver
from rollcall.consumers.training.streamed_step import StreamedStep
from rollcall.consumers.training.training_run import TrainingRun
from rollcall.producers.admission import Draws
from rollcall.producers.curators.curator import Curator
from rollcall.producers.curators.curriculum import Curriculum
from rollcall.producers.publisher import Publisher, flush_all
from rollcall.producers.submit import Submitter
from rollcall.schemas.codec import Codec
from rollcall.schemas.errors import Refused, Unavailable
from rollcall.schemas.messages import UNFINISHED, RolloutRequest
from rollcall.schemas.topics import Topics
from rollcall.trainer.checkpoints import checkpoint as checkpoints
from rollcall.trainer.checkpoints.consumption import Asked
from rollcall.trainer.config.learner_config import LearnerConfig
from rollcall.trainer.curation.borrowed_samples import Reencode
from rollcall.trainer.curation.reading import Reading
from rollcall.trainer.learner.step import Learner
from rollcall.trainer.weights import weights_files

ACK_S = 1.0
"""The longest wait of a turn for acks before a step."""
LOOK_EVERY_S = 10.0
"""Seconds between two checks that the newest weights still exist."""
AWAY_S = 0.5
"""Seconds between two tries while broker, registry or a store is unreachable."""

log = structlog.get_logger()


@dataclass(eq=False)
class Trainer:
    """Trains one policy of one run."""

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
    _unread: deque[Record] = field(default_factory=deque, init=False)
    """Records that were polled and not processed yet."""
    _looked_at: float = field(default=0.0, init=False)
    """The time when the newest weights were last checked."""

    def __post_init__(self) -> None:
        latest = checkpoints.load_latest(self.run.checkpoints)
        marks = LostOffsets(self.log, self.topics, self.run, latest.checkpoint)
        beginning = marks.beginning(accept=self.accept_truncation)
        self.run = beginning.run
        self.cancels = Cancels(self.publisher, self.codec, self.topics, self.name)
        self.submitter = Submitter(self.publisher, self.codec, self.topics, source=self.name)
        self.announcements = Announcements(self.codec, self.topics, self.run, self.learner)
        self.past = RunLog(self.log, self.codec, self.topics, self.run)
        self.curriculum = Curriculum(self.draws, self.curators, self.run.scoring_id)
        self.balance = StepBalance(self.clock)
        self.others = OtherPolicies(self.log, self.codec, self.topics, self.run, self.clock)
        self._resume(replace(latest, checkpoint=beginning.held))
        self.stall_detector.has_lost = bool(beginning.lost)
        self._looked_at = self.clock()
        self.balance.begin(self.buffer.drops())
        self.reader = self.intake.reader(self.log, self.topics.scored)
        with suppress(Unavailable):  # every turn asks again
            self.admission.evaluate_if_due()

    def _resume(self, latest: checkpoints.LatestCheckpoint) -> None:
        """Load the newest checkpoint, or make version 0; then announce what was not announced."""
        weights_files.clear_temporary(self.run.weights)
        announced = self.past.announced()
        for reason in latest.passed_over:
            log.warning("checkpoint_skipped", reason=reason)
        held = latest.checkpoint
        known = self.past.known(held, self.curriculum)
        if held is not None and latest.path is not None:
            checkpoints.require_recipe(latest.path, self.config.digest(), checkpoints.CHANGED)
        self.ledger = known.ledger
        # Cancels of the process that saved the checkpoint may have been lost when it ended.
        cut_off = self.ledger.unended() if self.config.cuts_off else []
        self.evaluations = Evaluations(self.heldout, self._ask_pinned, known.evaluations)
        highest = max(announced.highest_version, announced.highest_step_record)
        newest = max(highest, held.version if held else -1)
        weights_files.clear_unannounced(self.run.weights, newest)
        abandoned = checkpoints.abandon(held.abandoned, held.version, highest) if held else ()
        made_of = IntakeMaker(
            self.past, self.config, self.announcements, self.curriculum, self.ledger,
            self.evaluations, self.reencode, self.clock,
        )  # fmt: skip
        self.intake = made_of.intake(held, abandoned)
        self.buffer = self.intake.buffer
        self._put_together(highest, abandoned, known.asked)
        self.saver.begin(held, announced)
        for draw in range(self.ledger.next_draw, known.highest_draw + 1):
            self.admission.published(draw, self.curriculum.group(draw))
        for draw, rollout_id in known.continued:
            self.ledger.record_resumed(draw, rollout_id)
        if self.run.admits:
            self.submitter.publish(*known.unfinished)
            self.cancels.ask(self.ledger.losers(), REDUNDANT)
            self.cancels.ask(cut_off, UNFINISHED)

    def _put_together(self, highest: int, abandoned: checkpoints.Ranges, asked: Asked) -> None:
        """Build the parts that act on incoming rollouts: saving, admission, training."""
        self.continuing = None
        if self.config.cuts_off:
            self.continuing = self._continuing()
        later = self.config.save == "async"
        self.saver = StepSaver(
            self.name,
            self.log.publisher() if later else self.publisher,
            self.config,
            self.intake,
            highest,
            abandoned,
            asked,
            Retention(self.run, self.config, self.in_use),
            self.executor if later else InlineExecutor(),
            Fence(self.log, self.codec, self.topics, self.run, self.name),
        )
        self.admission = GroupAdmission(
            self.run, self.config, self.learner, self.ledger, self.curriculum, self.evaluations,
            self.others, self.submitter, self.continuing,
        )  # fmt: skip
        self.streamed = StreamedStep(self.learner, self.buffer, self.clock)
        self.stall_detector = StallDetector(self.admission, self.intake, self.clock)
        self.training = BatchTraining(
            self.config, self.intake, self.saver, self.balance, self.streamed, self.clock,
            self.reading,
        )  # fmt: skip

    def _continuing(self) -> RolloutContinuation:
        """Return the part that continues cancelled rollouts. Raises Refused if none can be."""
        why = "batch" if self.config.refills else "over_provision"
        if not self.run.admits or self.run.others:
            msg = f"{why} cancels rollouts of a run with one policy; take it out of [learner]"
            raise Refused(msg)
        if self.continue_ is None:
            msg = f"{why} needs a log to go on with cancelled rollouts from; give continue_"
            raise Refused(msg)
        return RolloutContinuation(
            self.buffer, self.ledger, self.cancels, self.submitter, self.continue_, self.clock
        )

    def _ask_pinned(self, *requests: RolloutRequest) -> None:
        """Request evaluations with the current versions of the other policies."""
        self.submitter.publish(*map(self.others.pinned, requests))

    def go_on(self, stopping: Callable[[], bool]) -> None:
        """Train until the run is done or is stopped; at the end all announcements are acked."""
        while not stopping() and not self.done():
            self.turn()
        with suppress(Unavailable):  # the next start takes the step again
            self.saver.save_trained(wait=True)
        flush_all(self.publisher, FLUSH_S, "records of the trainer", "its next start repeats them")

    def turn(self, timeout_s: float = 0.05) -> int:
        """Read, admit rollouts, train if a batch is there; return the number of records read.

        While broker, registry or a store is unreachable nothing is lost or done twice: records are
        processed later, and a step that was taken is announced before anything else.
        """
        if not (self._unread or self._full()):
            self._unread.extend(self.reader.poll(timeout_s))
        try:
            return self._turn()
        except Unavailable as error:
            log.warning("training_waits_for_cluster", error=str(error))
            time.sleep(AWAY_S)
            return 0

    def _turn(self) -> int:
        self.saver.fence.follow()
        self.saver.save_trained(wait=self.admission.stopped())
        self._look_for_weights()
        self.others.follow()
        self.admission.evaluate_if_due()
        records = len(self._unread)
        while self._unread:
            self.intake.offer(self._unread[0])
            self._unread.popleft()
        self.intake.note_dropped()
        losers = self.buffer.losers()
        if self.run.admits:
            self.cancels.ask(losers, REDUNDANT)
        self.curriculum.settle(self.ledger.low)
        self.stall_detector.log_if_forced()
        resumed = self.admission.go_on()
        admitted = self.admission.admit() + resumed
        trained = self._train()
        self.publisher.poll()
        if not (records or admitted or trained):
            self.stall_detector.give_up()
        self.stall_detector.log_if_idle(bool(records) or self.done())
        return records

    def _look_for_weights(self) -> None:
        """Publish the newest weights again if they are lost, since new servers need them."""
        now = self.clock()
        if now - self._looked_at >= LOOK_EVERY_S:
            self._looked_at = now
            self.saver.repair_lost()

    def _full(self) -> bool:
        """Return True if reading should pause to save memory; never after the last step."""
        return self.buffer.full() and not self.admission.stopped()

    def _train(self) -> bool:
        """Take a step if a batch is there and all earlier records are acked.

        So one checkpoint holds all that is announced and not acked, and all requests of draws below
        its own are below the end of the request topic that it records.
        """
        if self.admission.stopped():
            return False
        groups, tried = self.config.groups_per_step, bool(self.training.batch)
        if self.config.stream and not tried:
            self.streamed.add_complete()
        asked = self.saver.asked
        if tried or self.buffer.whole(groups):
            if self.publisher.flush(ACK_S):
                return False
            self.saver.require_room()
            if not tried and self._waits_for_what_it_cut_off():
                return False
            asked = self.past.asked_now()
        if not (tried or self._batch(groups)):
            return False
        self.saver.asked = asked
        self.training.train()
        self.admission.evaluate_if_due()
        return True

    def _batch(self, groups: int) -> bool:
        """Take a batch from the buffer; return False if there is none."""
        samples = self.buffer.take(groups, self.learner.version)
        self.intake.note_dropped()
        if self.continuing is not None:
            self.continuing.interrupted_at = None
        if samples is None:
            return False
        self.training.batch = samples
        self.stall_detector.batch()
        if self.continuing is not None:
            self.continuing.cancel()
        return True

    def _waits_for_what_it_cut_off(self) -> bool:
        """Return True while a step waits for its cancelled rollouts, to score their tokens."""
        if self.continuing is None or not self.config.interrupts:
            return False
        return not self.continuing.has_ended()

    def done(self) -> bool:
        """Return True if the run has ended and its last weights are evaluated."""
        if not (self.admission.stopped() and self.saver.all_saved()):
            return False
        return self.evaluations.complete(self.learner.version)

    def running(self) -> int:
        """Return the number of rollouts that are published and not seen scored yet."""
        return self.ledger.running()
