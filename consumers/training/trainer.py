"""The training group of one policy: read trajectories, train, publish, keep rollouts in flight.

Progress is kept in the checkpoint: it holds weights, optimiser, RNG and consumed offsets, and a
restart reads on from there. So the trainer reads with `assign`, not as a group member.
"""

import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

import structlog

from rollcall.consumers.log.protocols import Reader, Record
from rollcall.consumers.training.batch_training import BatchTraining
from rollcall.consumers.training.group_admission import GroupAdmission
from rollcall.consumers.training.intake import Intake
from rollcall.consumers.training.resumption import RunLog
from rollcall.consumers.training.stall_detector import StallDetector
from rollcall.consumers.training.step_saver import FLUSH_S, StepSaver
from rollcall.producers.publisher import Publisher, flush_all
from rollcall.schemas.errors import Unavailable
from rollcall.trainer.config.learner_config import LearnerConfig
from rollcall.trainer.learner.step import Learner

ACK_S = 1.0
"""The longest wait of a turn for acks before a step."""
LOOK_EVERY_S = 10.0
"""Seconds between two checks that the newest weights still exist."""
AWAY_S = 0.5
"""Seconds between two tries while broker, registry or a store is unreachable."""

log = structlog.get_logger()


@dataclass(eq=False)
class Trainer:
    """Trains one policy of one run; made by `TrainerSetup.open`."""

    config: LearnerConfig
    learner: Learner
    publisher: Publisher
    reader: Reader
    """Reads the scored trajectories."""
    past: RunLog
    intake: Intake
    admission: GroupAdmission
    saver: StepSaver
    training: BatchTraining
    stall_detector: StallDetector
    clock: Callable[[], float]
    _unread: deque[Record] = field(default_factory=deque, init=False)
    """Records that were polled and not processed yet."""
    _looked_at: float = field(init=False)
    """The time when the newest weights were last checked."""

    def __post_init__(self) -> None:
        self.buffer, self.ledger = self.intake.buffer, self.intake.ledger
        self.continuing, self.run = self.admission.continuing, self.admission.run
        self.curriculum, self.evaluations = self.intake.curriculum, self.intake.evaluations
        self._looked_at = self.clock()

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
        self.admission.others.follow()
        self.admission.evaluate_if_due()
        records = len(self._unread)
        while self._unread:
            self.intake.offer(self._unread[0])
            self._unread.popleft()
        self.intake.note_dropped()
        self.admission.cancel_redundant(self.buffer.losers())
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
        groups, tried = self.config.groups.per_step, bool(self.training.batch)
        if self.config.stream and not tried:
            self.training.streamed.add_complete()
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
