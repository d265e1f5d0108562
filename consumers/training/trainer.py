"""The training group of one policy: scored trajectories in, versions out, rollouts kept in the air.

Progress is the optimiser's: the checkpoint holds weights, optimiser, RNG and what was consumed, and
a restart reads on from there. It is saved before anything is announced, and it holds the records
that announce it, so a crash in between loses neither. A version number is never used twice.

It reads with `assign`, not as a group member: its position is in the checkpoint.
"""

import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import structlog

from consumers.heldout import HeldOut
from consumers.log.protocols import Log, Reader, Record, TopicPartition
from consumers.training.announcement import Announcements
from consumers.training.evaluations import Evaluations
from consumers.training.resumption import Announced, Past, decoded
from consumers.training.unreadable_ends import end_of, event_id
from producers.admission import AdmissionRule, Draws
from producers.publisher import Publisher, flush_all
from producers.submit import Submitter
from schemas.codec import Codec
from schemas.errors import BatchFailed, Unavailable, Unfit, WireError
from schemas.headers import full_headers
from schemas.ids import draw_of
from schemas.messages import (
    REPEATED,
    Consumed,
    PolicyVersion,
    ScoredTrajectory,
)
from schemas.topics import Topics
from schemas.weights import write_weights
from trainer import checkpoint as checkpoints
from trainer import weights_files
from trainer.checkpoint import Checkpoint
from trainer.config import LearnerConfig
from trainer.curation import Buffer, Consumption, Sample
from trainer.step import Learner

KEEP_CHECKPOINTS = 3
FLUSH_S = 30.0
ACK_S = 1.0
"""How long a turn waits for acks before a step."""
AWAY_S = 0.5
"""Between two tries while broker, registry or a store is away."""
IDLE_SAID_S = 30.0

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Run:
    """What one training run is."""

    run_id: str
    policy_id: str
    directory: Path
    """Checkpoints and weights lie here."""
    starts: Mapping[TopicPartition, int]
    """Where every topic ended when the run was made: nothing of the run lies before."""
    scoring_id: str
    """Whose rewards are trained on."""
    rule: AdmissionRule
    """How many rollouts may be in the air."""
    steps: int = 0
    """No rollouts are admitted beyond this many steps; 0 is without end."""


@dataclass(frozen=True, slots=True)
class _Unsaved:
    """A step that was taken."""

    samples: tuple[Sample, ...]
    metrics: Mapping[str, float]
    parent: int


class Trainer:
    """Trains one policy of one run."""

    def __init__(
        self,
        name: str,
        log_: Log,
        codec: Codec,
        topics: Topics,
        publisher: Publisher,
        learner: Learner,
        config: LearnerConfig,
        run: Run,
        draws: Draws,
        heldout: HeldOut | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name = name
        self.log = log_
        self.codec = codec
        self.topics = topics
        self.publisher = publisher
        self.learner = learner
        self.config = config
        self.run = run
        self.draws = draws
        self.heldout = heldout
        self.clock = clock
        self.submitter = Submitter(publisher, codec, topics, source=name)
        self.rule = run.rule
        self.weights = run.directory / "weights"
        self.highest = -1
        self.parent = -1
        self.abandoned: checkpoints.Ranges = ()
        self.pending: Mapping[str, bytes] = {}
        """The records that announce the newest checkpoint."""
        self._said_idle = clock()
        self._unread: deque[Record] = deque()
        """What was polled and not offered yet."""
        self.words = Announcements(codec, topics, run.policy_id, run.run_id, learner)
        self._failed_in_a_row = 0
        self._unsaved: _Unsaved | None = None
        """The last step, where a store that is away has kept it from being saved and announced."""
        self._unaccounted = 0
        """Unreadable records that may have been some of those in the air."""
        self.past = Past(log_, codec, topics, run.run_id, run.policy_id, run.scoring_id, run.starts)
        self._resume()
        self.reader = self._read_on()
        with suppress(Unavailable):  # every turn asks again
            self._evaluate_if_due()

    # Beginning, and beginning again

    def _resume(self) -> None:
        """Load the newest checkpoint, or make version 0; then announce what was not announced."""
        weights_files.clear_temporary(self.weights)
        seen = self.past.announced()
        self.highest = seen.highest_version
        found = checkpoints.load_latest(self.run.directory / "checkpoints")
        for reason in found.passed_over:
            log.warning("checkpoint_passed_over", reason=reason)
        self.known = self.past.known(found.checkpoint, self.draws)
        self.asked_from = self.known.asked_from
        self.accounts = self.known.accounts
        self.evaluations = Evaluations(self.heldout, self.submitter.publish, self.known.evaluations)
        if found.checkpoint is None or found.path is None:
            self._begin()
        else:
            checkpoints.require_recipe(found.path, self.config.digest(), checkpoints.CHANGED)
            self._begin_again(found.checkpoint, seen)
        self.submitter.publish(*self.known.unfinished)
        self.accounts.published(self.known.highest_draw)

    def _begin(self) -> None:
        self._take_up(())
        self.learner.version = checkpoints.next_version(self.highest)
        self._save_and_announce({}, (), -1)

    def _begin_again(self, held: Checkpoint, seen: Announced) -> None:
        self.learner.load(held.state)
        self._mend_weights(held.pending.get("version"))
        self.parent, self.pending = held.parent, held.pending
        self.abandoned = checkpoints.abandon(held.abandoned, held.version, self.highest)
        self._take_up(held.consumed)
        self.buffer.restore(held.recent if held.book else (), held.drops, held.used)
        self._unaccounted = held.book.unreadable if held.book else 0
        self.words.begin(held.drops)
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
            file = self.codec.decode(announcing, PolicyVersion).full
        except WireError:
            file = None
        version = self.learner.version
        if weights_files.mend(self.weights, file, version, self.learner.tensors()):
            log.warning("weights_mended", version=version)

    def _take_up(self, marks: tuple[Consumed, ...]) -> None:
        """A buffer, and where the scored trajectories have been read to."""
        curation = replace(
            self.config.curation(self.run.run_id, self.run.policy_id),
            vocabulary=self.learner.vocabulary,
            context=self.learner.context,
            abandoned=self.abandoned,
        )
        scored = self.topics.scored
        self.buffer = Buffer(curation, self.accounts)
        self.consumption = Consumption(scored, marks, self.log.topic_id(scored))

    def _read_on(self) -> Reader:
        """Read scored trajectories from the lowest not consumed."""
        scored = self.topics.scored
        starts = {tp: at for tp, at in self.run.starts.items() if tp[0] == scored}
        for mark in self.consumption.marks():
            starts[mark.topic, mark.partition] = mark.next_offset
        return self.log.reader([scored], starts)

    # One turn

    def go_on(self, stopping: Callable[[], bool]) -> None:
        """Train until the run is done or somebody stops it; all that was announced is acked."""
        while not stopping() and not self.done():
            self.turn()
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
        self._save_step()
        self._evaluate_if_due()
        records = len(self._unread)
        while self._unread:
            self._offer(self._unread[0])
            self._unread.popleft()
        self._note_dropped()
        admitted = self.admit()
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
        groups = self.config.groups_per_step
        asked_from = self.asked_from
        if self.buffer.ready_groups() >= groups:
            if self.publisher.flush(ACK_S):
                return False
            asked_from = self.past.ends(self.topics.requests)
        samples = self.buffer.take(groups, self.learner.version)
        self._note_dropped()
        if samples is None:
            return False
        self.asked_from = asked_from
        self._step(samples)
        self._evaluate_if_due()
        return True

    def done(self) -> bool:
        """Whether the run has come to its end and its last weights are evaluated."""
        return self._stopped() and self.evaluations.complete(self.learner.version)

    def _stopped(self) -> bool:
        """No further step is taken: all are done, or the goal is reached."""
        return self.evaluations.reached or 0 < self.run.steps <= self.learner.steps_done

    def _evaluate_if_due(self) -> None:
        if self.evaluations.due(self.learner.steps_done) or self._stopped():
            self.evaluations.ask(self.learner.version)

    def _before_training(self) -> bool:
        """Whether the starting weights are still being evaluated."""
        return self.learner.steps_done == 0 and not self.evaluations.complete(self.learner.version)

    # What comes

    def _offer(self, record: Record) -> None:
        if not self.consumption.delivered(record.partition, record.offset):
            return
        scored = decoded(self.codec, record, ScoredTrajectory)
        if scored is None:
            self.words.unreadable += 1
            scored = self._named(record)
        elif scored.trajectory.request is None:
            scored = self._requested(scored)
        if scored is None or scored.scoring_id != self.run.scoring_id:
            self.consumption.consumed(record.partition, record.offset)
        else:
            self.evaluations.hear(scored)
            if self.evaluations.reached:
                self.evaluations.ask(self.learner.version)
            self.buffer.offer(scored, record.partition, record.offset)

    def _named(self, record: Record) -> ScoredTrajectory | None:
        """Whose end an unreadable record is; where it does not say, it may be anybody's."""
        if event_id(record) is None:
            self._unaccounted = min(self._unaccounted + 1, self._in_the_air())
            return None
        group = (record.key or b"").decode(errors="replace")
        draw = draw_of(self.run.run_id, group)
        if 0 <= draw < self.accounts.next_draw:
            return end_of(record, self.draws.group(draw), self.run.scoring_id)
        return end_of(record, self.evaluations.requests_of(group), self.run.scoring_id)

    def _requested(self, scored: ScoredTrajectory) -> ScoredTrajectory:
        """With its request, where that was one of ours: it is left out where nobody could read it.

        What was only asked for again has not ended.
        """
        trajectory = scored.trajectory
        if trajectory.code == REPEATED:
            return scored
        name = trajectory.rollout_id
        draw = self.accounts.draw_with(name)
        group, _, _ = name.rpartition("/")
        asked = self.evaluations.requests_of(group) if draw < 0 else self.draws.group(draw)
        request = next((request for request in asked if request.rollout_id == name), None)
        return replace(scored, trajectory=replace(trajectory, request=request))

    def _note_dropped(self) -> None:
        for dropped in self.buffer.released():
            self.consumption.consumed(dropped.partition, dropped.offset)

    def _say_if_idle(self, heard: bool) -> None:
        now = self.clock()
        if heard or self.done():
            self._said_idle = now
        elif now - self._said_idle > IDLE_SAID_S:
            self._said_idle = now
            log.warning(
                "training_waits",
                running=self.running(),
                held=self.buffer.held(),
                ready_groups=self.buffer.ready_groups(),
                needed_groups=self.config.groups_per_step,
                **{f"dropped_{reason}": t.count for reason, t in self.buffer.drops().items()},
            )

    # Admission

    def running(self) -> int:
        """Rollouts published and not seen scored yet."""
        return self.accounts.running()

    def admit(self) -> int:
        """Publish as many whole groups as the rule grants; return how many."""
        if self._stopped() or self._before_training():
            return 0
        done = self.learner.steps_done
        accepted = done * self.rule.batch + self.accounts.held()
        groups = self.rule.grant(done, accepted, self.running())
        for _ in range(groups):
            self.submitter.publish(*self.draws.group(self.accounts.next_draw))
            self.accounts.published(self.accounts.next_draw)
        return groups

    def _give_up(self) -> None:
        """Where all that is in the air has come, though unreadable, go on without it."""
        if self._stopped() or self._before_training():
            waits = not self.evaluations.complete(self.learner.version)
        else:
            waits = self.buffer.ready_groups() < self.config.groups_per_step
        if waits and 0 < self._in_the_air() <= self._unaccounted:
            lost = self.buffer.give_up() + self.evaluations.give_up()
            self._unaccounted -= lost
            self._note_dropped()
            log.warning("rollouts_given_up", rollouts=lost)

    def _in_the_air(self) -> int:
        """All that was asked for and whose end has not been read."""
        return self.running() + self.evaluations.missing()

    # Training

    def _step(self, samples: tuple[Sample, ...]) -> None:
        began = self.clock()
        parent = self.learner.version
        version = checkpoints.next_version(self.highest, parent)
        try:
            metrics = self.learner.step(samples, version=version)
        except BatchFailed as error:
            self._drop_batch(samples, error)
            return
        self._failed_in_a_row = 0
        metrics["step_seconds"] = self.clock() - began
        metrics["held"] = float(self.buffer.held())
        metrics["running"] = float(self.running())
        for sample in samples:
            self.consumption.consumed(sample.partition, sample.offset)
        self._unsaved = _Unsaved(samples, metrics, parent)
        self._save_step()

    def _save_step(self) -> None:
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

    def _drop_batch(self, samples: tuple[Sample, ...], error: BatchFailed) -> None:
        """Count a batch that cannot be trained on as dropped, so that the next one is tried.

        Raises Unfit after `max_skipped` in a row, with all of them in the checkpoint: then it is
        not the batch, and whoever begins again does not meet these again.
        """
        self.buffer.spoil(samples, "step_failed")
        self._note_dropped()
        log.error("batch_dropped", step=self.learner.steps_done + 1, error=str(error))
        self._failed_in_a_row += 1
        if self._failed_in_a_row >= self.config.max_skipped:
            self._save(self.pending)
            msg = f"{self._failed_in_a_row} batches in a row were dropped, the last since {error}"
            raise Unfit(msg) from error

    def _save_and_announce(
        self, metrics: Mapping[str, float], samples: tuple[Sample, ...], parent: int
    ) -> None:
        """1. weights  2. checkpoint, with the records to come  3. version  4. step."""
        self.parent = parent
        weights = write_weights(str(self.weights), self.learner.version, self.learner.tensors())
        pending = {"version": self.words.version(parent, weights, self.consumption.marks())}
        if samples:
            pending["step"] = self.words.step(
                parent, samples, metrics, self.buffer.drops(), weights.weights_digest
            )
        self._save(pending)
        self._publish(self.topics.versions, pending["version"], "PolicyVersion")
        if samples:
            self._publish(self.topics.train_steps, pending["step"], "TrainStep")
        self.publisher.flush(FLUSH_S)
        self.highest = self.learner.version
        checkpoints.prune(
            self.run.directory / "checkpoints",
            KEEP_CHECKPOINTS,
            self.config.checkpoint_keep_every,
        )
        weights_files.prune(self.weights, self.evaluations.awaited())

    def _save(self, pending: Mapping[str, bytes]) -> None:
        """Write the checkpoint of what is there; `pending` are the records that announce it."""
        self.pending = pending
        checkpoints.save(
            self.run.directory / "checkpoints",
            Checkpoint(
                self.learner.state(),
                self.parent,
                self.config.digest(),
                self.consumption.marks(),
                (*self.buffer.recent(), *self.accounts.left()),
                self.buffer.drops(),
                self.abandoned,
                pending,
                self.buffer.used,
                self.accounts.book(self._unaccounted, self.asked_from),
            ),
        )

    def _publish(self, topic: str, value: bytes, kind: str) -> None:
        ce_id = f"{self.run.policy_id}/{self.learner.version}"
        headers = full_headers(kind, ce_id, self.name, self.run.policy_id, self.run.run_id)
        self.publisher.send(topic, self.run.policy_id, value, headers=headers)
