"""The training group of one policy: scored trajectories in, versions out, rollouts kept in the air.

Progress is the optimiser's: the checkpoint holds weights, optimiser, RNG and what was consumed, and
a restart reads on from there.

It reads with `assign`, not as a group member: its position is in the checkpoint.
"""

import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial

import structlog

from consumers.heldout import HeldOut
from consumers.inline_executor import InlineExecutor
from consumers.log.protocols import Log, Record
from consumers.training.announcement import Announcements
from consumers.training.cancels import REDUNDANT, Cancels
from consumers.training.continuing import Continue, Continuing
from consumers.training.evaluations import Evaluations
from consumers.training.intake import Intake
from consumers.training.other_policies import OtherPolicies
from consumers.training.recorded_groups import EarlierRun
from consumers.training.resumption import RunLog
from consumers.training.retention import InUse, Retention
from consumers.training.step_balance import StepBalance
from consumers.training.step_saver import FLUSH_S, StepSaver
from consumers.training.streamed_step import StreamedStep
from consumers.training.training_run import TrainingRun
from producers.admission import Draws
from producers.curators.curator import Curator
from producers.curators.curriculum import Curriculum
from producers.publisher import Publisher, flush_all
from producers.submit import Submitter
from schemas.codec import Codec
from schemas.errors import BatchFailed, Refused, Unavailable, Unfit
from schemas.messages import UNFINISHED, RolloutRequest
from schemas.topics import Topics
from trainer import checkpoint as checkpoints
from trainer import weights_files
from trainer.checkpoint import Checkpoint
from trainer.config import LearnerConfig
from trainer.consumption import Consumption
from trainer.curation import Buffer, group_filters, worth_training
from trainer.foreign import RECORDED, SHARED
from trainer.foreign_groups import Mark
from trainer.foreign_samples import Retell
from trainer.samples import Curation, Sample
from trainer.step import Learner

ACK_S = 1.0
"""How long a turn waits for acks before a step."""
AWAY_S = 0.5
"""Between two tries while broker, registry or a store is away."""
IDLE_S = 30.0
NO_BATCH_S = 600.0
"""After so long without a batch the next group is trained on whatever the filters say."""

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
    """Who chooses the tasks; nobody: they are drawn uniformly."""
    clock: Callable[[], float] = field(default=time.monotonic, kw_only=True)
    in_use: InUse = field(kw_only=True)
    """Which versions the log says are in use."""
    continue_: Continue | None = field(default=None, kw_only=True)
    """How cancelled rollouts go on; needed where some may."""
    retell: Retell | None = field(default=None, kw_only=True)
    """How text of others is read; needed where some is shared."""
    executor: Executor = field(default_factory=InlineExecutor, kw_only=True)
    """What saves steps, where they are saved while the next batch is trained."""
    _unread: deque[Record] = field(default_factory=deque, init=False)
    """What was polled and not offered yet."""
    _failed_in_a_row: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self.cancels = Cancels(self.publisher, self.codec, self.topics, self.name)
        self.submitter = Submitter(self.publisher, self.codec, self.topics, source=self.name)
        self.words = Announcements(self.codec, self.topics, self.run, self.learner)
        self.past = RunLog(self.log, self.codec, self.topics, self.run)
        self.curriculum = Curriculum(self.draws, self.curators, self.run.scoring_id)
        self._idle_since = self._batch_at = self.clock()
        self.balance = StepBalance(self.clock)
        self.others = OtherPolicies(self.log, self.codec, self.topics, self.run, self.clock)
        self._resume()
        self.balance.begin(self.buffer.drops())
        self.reader = self.intake.reader(self.log, self.topics.scored)
        with suppress(Unavailable):  # every turn asks again
            self._evaluate_if_due()

    def _resume(self) -> None:
        """Load the newest checkpoint, or make version 0; then announce what was not announced."""
        weights_files.clear_temporary(self.run.weights)
        announced = self.past.announced()
        latest = checkpoints.load_latest(self.run.checkpoints)
        for reason in latest.passed_over:
            log.warning("checkpoint_passed_over", reason=reason)
        held = latest.checkpoint
        known = self.past.known(held, self.curriculum)
        if held is not None and latest.path is not None:
            checkpoints.require_recipe(latest.path, self.config.digest(), checkpoints.CHANGED)
        self.accounts = known.accounts
        # Whoever saved the checkpoint may not have been heard when it ended what was running.
        cut_off = self.accounts.unended() if self.config.cuts_off else []
        self.evaluations = Evaluations(self.heldout, self._ask_pinned, known.evaluations)
        highest = announced.highest_version
        newest = max(highest, held.version if held else -1)
        weights_files.clear_unannounced(self.run.weights, newest)
        abandoned = checkpoints.abandon(held.abandoned, held.version, highest) if held else ()
        self.intake = self._intake(held, abandoned)
        self.buffer, self.consumption = self.intake.buffer, self.intake.consumption
        self.continuing = self._continuing()
        self.streamed = StreamedStep(self.learner, self.buffer, self.clock)
        later = self.config.save == "async"
        self.saver = StepSaver(
            self.name,
            self.log.publisher() if later else self.publisher,
            self.config,
            self.intake,
            highest,
            abandoned,
            known.asked_from,
            Retention(self.run, self.config, self.in_use),
            self.executor if later else InlineExecutor(),
        )
        self.saver.begin(held, announced)
        for draw in range(self.accounts.next_draw, known.highest_draw + 1):
            size = len(self.curriculum.group(draw))
            self.accounts.published(draw, size, self._begun_under())
        for draw, rollout_id in known.continued:
            self.accounts.went_on(draw, rollout_id)
        if self.run.admits:
            self.submitter.publish(*known.unfinished)
            self.cancels.ask(self.accounts.losers(), REDUNDANT)
            self.cancels.ask(cut_off, UNFINISHED)

    def _continuing(self) -> Continuing | None:
        """What goes on with cancelled rollouts; raises Refused where nothing can."""
        if not self.config.cuts_off:
            return None
        why = "batch" if self.config.refills else "over_provision"
        if not self.run.admits or self.run.others:
            msg = f"{why} cancels rollouts of a run with one policy; take it out of [learner]"
            raise Refused(msg)
        if self.continue_ is None:
            msg = f"{why} needs a log to go on with cancelled rollouts from; give continue_"
            raise Refused(msg)
        return Continuing(
            self.buffer, self.accounts, self.cancels, self.submitter, self.continue_, self.clock
        )

    def _intake(self, held: Checkpoint | None, abandoned: checkpoints.Ranges) -> Intake:
        """What comes goes here: as a checkpoint left it, or empty; it loads the learner too."""
        curation = replace(
            self.config.curation(self.run.run_id, self.run.policy_id, abandoned),
            vocabulary=self.learner.vocabulary,
            context=self.learner.context,
            joins=not self.run.admits,
        )
        scored, marks = self.topics.scored, held.consumed if held else ()
        consumption = Consumption(scored, marks, self.log.topic_id(scored))
        recorded = self._recorded(curation, held.replay.recorded if held else ())
        rule = self.config.replay()
        buffer = Buffer(curation, self.accounts, rule, recorded, self.retell)
        intake = Intake(self.words, self.curriculum, buffer, consumption, self.evaluations)
        if held is not None:
            self.learner.load(held.state)
            intake.restore(held)
            self.past.replay(buffer, held.replay)
        return intake

    def _recorded(self, curation: Curation, mark: Mark) -> EarlierRun | None:
        """The groups of an earlier run, from where a checkpoint stood; None where none are named.

        Raises Refused where there are none.
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

    def go_on(self, stopping: Callable[[], bool]) -> None:
        """Train until the run is done or somebody stops it; all that was announced is acked."""
        while not stopping() and not self.done():
            self.turn()
        with suppress(Unavailable):  # its next start takes the step again
            self.saver.save_trained(wait=True)
        flush_all(self.publisher, FLUSH_S, "records of the trainer", "its next start repeats them")

    def turn(self, timeout_s: float = 0.05) -> int:
        """Read, keep rollouts in the air, train when a batch is there; return records read.

        While broker, registry or a store is away nothing is lost or done twice: what was read is
        offered later, a step that was taken is announced before anything else.
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
        self.saver.save_trained(wait=self._stopped())
        self.others.follow()
        self._evaluate_if_due()
        records = len(self._unread)
        while self._unread:
            self.intake.offer(self._unread[0])
            self._unread.popleft()
        self.intake.note_dropped()
        losers = self.buffer.losers()
        if self.run.admits:
            self.cancels.ask(losers, REDUNDANT)
        self.curriculum.settle(self.accounts.low)
        self._say_if_forced()
        went_on = self._go_on()
        admitted = self.admit() + went_on
        trained = self._train()
        self.publisher.poll()
        if not (records or admitted or trained):
            self._give_up()
        self._say_if_idle(bool(records))
        return records

    def _full(self) -> bool:
        """Whether reading would only fill memory: not while it is what everybody waits for."""
        return self.buffer.full() and not self._stopped()

    def _train(self) -> bool:
        """Take a step if a batch is there, and all that was written before it is acked.

        So one checkpoint holds all that is announced and not acked, and all requests of draws below
        its own lie below where they ended when it was saved.
        """
        if self._stopped():
            return False
        if self.config.stream:
            self.streamed.add_complete()
        groups = self.config.groups_per_step
        asked_from = self.saver.asked_from
        if self.buffer.whole(groups):
            if self.publisher.flush(ACK_S):
                return False
            self.saver.require_room()
            if self._waits_for_what_it_cut_off():
                return False
            asked_from = self.past.ends(self.topics.requests)
        samples = self.buffer.take(groups, self.learner.version)
        self.intake.note_dropped()
        if samples is None:
            if self.continuing is not None:
                self.continuing.interrupted_at = None
            return False
        self.saver.asked_from = asked_from
        self._batch_at = self.clock()
        if self.continuing is not None:
            self.continuing.interrupted_at = None
            self.continuing.cancel()
        self._step(samples)
        self._evaluate_if_due()
        return True

    def _waits_for_what_it_cut_off(self) -> bool:
        """Whether a step is held back until all that its weights have sampled can be scored."""
        if self.continuing is None or not self.config.interrupts:
            return False
        return not self.continuing.has_ended()

    def _interrupting(self) -> bool:
        return self.continuing is not None and self.continuing.interrupted_at is not None

    def done(self) -> bool:
        """Whether the run has come to its end and its last weights are evaluated."""
        if not (self._stopped() and self.saver.all_saved()):
            return False
        return self.evaluations.complete(self.learner.version)

    def _stopped(self) -> bool:
        """No further step is taken: all are done, or the goal is reached."""
        return self.evaluations.reached or 0 < self.run.steps <= self.learner.steps_done

    def _evaluate_if_due(self) -> None:
        due = self.evaluations.due(self.learner.steps_done) or self._stopped()
        if due and self.others.all_there():
            self.evaluations.ask(self.learner.version)

    def _before_training(self) -> bool:
        """Whether the starting weights are still being evaluated."""
        return self.learner.steps_done == 0 and not self.evaluations.complete(self.learner.version)

    def _say_if_idle(self, heard: bool) -> None:
        now = self.clock()
        if heard or self.done():
            self._idle_since = now
        elif now - self._idle_since > IDLE_S:
            self._idle_since = now
            log.warning(
                "training_waits",
                running=self.running(),
                held=self.buffer.held(),
                ready_groups=self.buffer.ready_groups(),
                needed_groups=self.config.fresh_groups,
                **{f"dropped_{reason}": t.count for reason, t in self.buffer.drops().items()},
            )

    def running(self) -> int:
        """Rollouts published and not seen scored yet."""
        return self.accounts.running()

    def admit(self) -> int:
        """Publish as many whole groups as the rule grants; return how many."""
        if not self.run.admits or self._stopped() or self._before_training():
            return 0
        if self._interrupting():
            return 0
        if not self.others.all_there():
            return 0
        done = self.learner.steps_done
        accepted = done * self.run.rule.batch + self.accounts.taken()
        groups = self.others.granted(
            self.run.rule.grant(done, accepted, self.running()),
            self.config.fresh_groups,
            done,
            self.running(),
        )
        for _ in range(groups):
            draw = self.accounts.next_draw
            group = self.curriculum.next_group(draw, self.learner.version)
            least = self._least_version()
            self.submitter.publish(*(replace(each, min_policy_version=least) for each in group))
            self.accounts.published(draw, len(group), self._begun_under())
        return groups

    def _ask_pinned(self, *requests: RolloutRequest) -> None:
        """Ask for evaluations, of the versions that other policies have now."""
        self.submitter.publish(*map(self.others.pinned, requests))

    def _begun_under(self) -> int | None:
        """The newest version, where running groups are waited for by it."""
        return self.learner.version if self.config.on_stale == "wait" else None

    def _say_if_forced(self) -> None:
        """Nothing passes the filters: let something through, and say so."""
        if self.clock() - self._batch_at > NO_BATCH_S and not self._stopped():
            self._batch_at = self.clock()
            self.buffer.force(f"there was no batch for {NO_BATCH_S / 60:g} minutes")
        if why := self.buffer.forced():
            dropped = {f"dropped_{r}": t.count for r, t in self.buffer.drops().items()}
            log.warning("group_forced_through", why=why, **dropped)

    def _give_up(self) -> None:
        """Wait no longer for rollouts that can only have come unreadable.

        Who does not admit does not know all that is in the air.
        """
        if not self.run.admits:
            return
        if self._stopped() or self._before_training():
            waits = not self.evaluations.complete(self.learner.version)
        else:
            waits = not self.buffer.whole(self.config.groups_per_step)
        if waits:
            self.intake.give_up()

    def _go_on(self) -> int:
        """Ask for the rest of what was cancelled for the time being."""
        if self.continuing is None or self._stopped() or self._interrupting():
            return 0
        return self.continuing.go_on(self._least_version())

    def _least_version(self) -> int:
        """What rollouts are begun with: where no older weights will do, the newest."""
        older_will_do = self.config.max_staleness > 0 or bool(self.run.others)
        # What older weights say after they were trained nobody can score any more.
        return 0 if older_will_do and not self.config.interrupts else self.learner.version

    def _step(self, samples: tuple[Sample, ...]) -> None:
        began = self.clock()
        parent = self.learner.version
        try:
            metrics, samples = self._learn(samples)
        except BatchFailed as error:
            self._drop_batch(samples, error)
            return
        self._failed_in_a_row = 0
        metrics["step_seconds"] = self.clock() - began
        metrics["held"] = float(self.buffer.held())
        metrics["running"] = float(self.running())
        fresh = [sample for sample in samples if sample.fresh]
        metrics["save_stall_s"], self.saver.stalled_s = self.saver.stalled_s, 0.0
        metrics["kept_bytes"] = float(self.saver.retention.kept_bytes)
        metrics |= self.balance.step(began, fresh, self.buffer.drops(), self.buffer.held())
        metrics |= _lent(samples)
        for sample in fresh:
            self.consumption.consumed(sample.partition, sample.offset)
        self.saver.trained(samples, metrics, parent)
        self.balance.waits()

    def _learn(self, samples: tuple[Sample, ...]) -> tuple[dict[str, float], tuple[Sample, ...]]:
        """The metrics of a step, and its samples in the order in which they were added."""
        version = self.saver.next_version()
        if self.config.interrupts:
            self.learner.note([*self.buffer.noteworthy(), *samples])
        if self.config.stream:
            return self.streamed.take(samples, version)
        return self.learner.step(samples, version=version), samples

    def _drop_batch(self, samples: tuple[Sample, ...], error: BatchFailed) -> None:
        """Count a batch that cannot be trained on as dropped, so that the next one is tried.

        Raises Unfit after `max_skipped` in a row, with all of them in the checkpoint: then it is
        not the batch, and whoever begins again does not meet these again.
        """
        self.buffer.spoil(samples, "step_failed")
        self.intake.note_dropped()
        log.error("batch_dropped", step=self.learner.steps_done + 1, error=str(error))
        self._failed_in_a_row += 1
        if self._failed_in_a_row >= self.config.max_skipped:
            self.saver.save_again()
            msg = f"{self._failed_in_a_row} batches in a row were dropped, the last since {error}"
            raise Unfit(msg) from error


def _lent(samples: Sequence[Sample]) -> dict[str, float]:
    """How many of a batch were used before, recorded by another run, shared by one; if any were."""
    counts = {
        "replayed": sum(sample.uses > 0 for sample in samples),
        RECORDED: sum(sample.lent == RECORDED for sample in samples),
        SHARED: sum(sample.lent == SHARED for sample in samples),
    }
    return {name: float(count) for name, count in counts.items() if count}
