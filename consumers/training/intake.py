"""Intake of a run's scored rollouts: into the buffer, the evaluations and the consumed offsets.

An unreadable record may be the end of one of them. If its headers name the rollout, that rollout
has ended; if not, it is counted, and once nothing else is in flight, missing rollouts are given up.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace

import structlog

from rollcall.consumers.log.epochs import UNKNOWN, Epochs
from rollcall.consumers.log.protocols import Log, Reader, Record
from rollcall.consumers.loop.decode_in_order import decoded
from rollcall.consumers.training.announcement import Announcements
from rollcall.consumers.training.evaluations import Evaluations
from rollcall.producers.curators.curriculum import Curriculum
from rollcall.schemas.errors import FailureCode
from rollcall.schemas.ids import draw_of, scored_id
from rollcall.schemas.messages import RolloutRequest, ScoredTrajectory, Trajectory
from rollcall.trainer.checkpoints.checkpoint import Checkpoint
from rollcall.trainer.checkpoints.consumption import Consumption, Leader, counted
from rollcall.trainer.curation.buffer import Buffer
from rollcall.trainer.curation.group_ledger import GroupLedger

FARTHEST = 10_000
"""The most draws that may be missing below a newly met one, as partitions are read unevenly."""

log = structlog.get_logger()


@dataclass(eq=False)
class Intake:
    """Takes in scored trajectories, one record after another."""

    announcements: Announcements
    curriculum: Curriculum
    buffer: Buffer
    consumption: Consumption
    evaluations: Evaluations
    unaccounted: int = 0
    """Unreadable records that may have been rollouts in flight."""

    def __post_init__(self) -> None:
        self._epochs: defaultdict[int, Epochs] = defaultdict(Epochs)
        """The leader epochs of the records read, by partition."""
        self.codec, self.topics = self.announcements.codec, self.announcements.topics
        self.run, self.learner = self.announcements.run, self.announcements.learner

    @property
    def ledger(self) -> GroupLedger:
        return self.buffer.ledger

    def restore(self, held: Checkpoint) -> None:
        """Restore the state of a checkpoint."""
        self.buffer.restore(held.recent, held.drops, held.used)
        self.unaccounted = held.book.unreadable
        for topic, partition, offset, epoch in held.leaders:
            if topic == self.consumption.topic:
                self._epochs[partition] = Epochs(offset, epoch)
        self.announcements.begin(self.buffer.drops())

    def reader(self, log_: Log, scored: str) -> Reader:
        """Return a reader of scored trajectories from the lowest offset that is not consumed."""
        starts = {tp: at for tp, at in self.run.starts.items() if tp[0] == scored}
        for mark in self.consumption.marks():
            starts[mark.topic, mark.partition] = mark.next_offset
        return log_.reader([scored], starts)

    def leaders(self) -> tuple[Leader, ...]:
        """Return the leader epoch of the last consumed record of each partition, where known."""
        found = []
        for mark in self.consumption.marks():
            place = mark.topic, mark.partition, counted(mark)
            found.append(Leader(*place, self._epochs[mark.partition].before(counted(mark))))
        return tuple(leader for leader in found if leader.epoch != UNKNOWN)

    def offer(self, record: Record) -> None:
        """Process one record. Raises Unavailable if it has to be offered again."""
        self._epochs[record.partition].saw(record.offset, record.leader_epoch)
        if not self.consumption.delivered(record.partition, record.offset):
            return
        scored = decoded(self.codec, record, ScoredTrajectory)
        if scored is None:
            self.announcements.unreadable += 1
            scored = self._named(record)
        elif scored.trajectory.request is None:
            scored = self._requested(scored)
        if scored is None or scored.scoring_id != self.run.scoring_id:
            self.consumption.consumed(record.partition, record.offset)
        else:
            self.evaluations.hear(scored)
            if self.evaluations.reached:
                self.evaluations.ask(self.learner.version)
            self.curriculum.hear(scored)
            self._learn_of_draw(scored)
            self.buffer.offer(scored, record.partition, record.offset)

    def _learn_of_draw(self, scored: ScoredTrajectory) -> None:
        """Learn of a draw and all lower ones from its results, if this trainer does not admit."""
        request = scored.trajectory.request
        if self.run.admits or request is None or request.purpose != "train":
            return
        draw = draw_of(self.run.run_id, request.group_id)
        if draw < self.ledger.low or request.run_id != self.run.run_id:
            return
        if draw >= self.ledger.next_draw + FARTHEST:
            return
        known, size = draw < self.ledger.next_draw, request.group_size
        if known and size >= self.curriculum.group_size:
            return
        # A made-up draw would be waited for; so only ids that this draw really has are accepted.
        if request.rollout_id in self.curriculum.draws.ids(draw):
            self.ledger.published(draw, size)

    def _named(self, record: Record) -> ScoredTrajectory | None:
        """Return the end of the rollout that an unreadable record names; count it otherwise."""
        if event_id(record) is None:
            self.unaccounted = min(self.unaccounted + 1, self.in_the_air())
            return None
        group = (record.key or b"").decode(errors="replace")
        draw = draw_of(self.run.run_id, group)
        if 0 <= draw < self.ledger.next_draw:
            return end_of(record, self._drawn(draw), self.run.scoring_id)
        return end_of(record, self.evaluations.requests_of(group), self.run.scoring_id)

    def _requested(self, scored: ScoredTrajectory) -> ScoredTrajectory:
        """Add the request, which is left out if no agent could read it, where it was one of ours.

        A rollout that was merely requested again has not ended.
        """
        trajectory = scored.trajectory
        if trajectory.code == FailureCode.REPEATED:
            return scored
        name = trajectory.rollout_id
        draw = self.ledger.drawn.with_member(name)
        group, _, _ = name.rpartition("/")
        requests = self.evaluations.requests_of(group) if draw < 0 else self._drawn(draw)
        request = next((request for request in requests if request.rollout_id == name), None)
        return replace(scored, trajectory=replace(trajectory, request=request))

    def _drawn(self, draw: int) -> list[RolloutRequest]:
        """Return the requests of a draw under their current ids."""
        return [
            replace(request, rollout_id=self.ledger.drawn.name_of(draw, request.rollout_id))
            for request in self.curriculum.group(draw)
        ]

    def note_dropped(self) -> None:
        """Mark the records that the buffer has released as consumed."""
        for dropped in self.buffer.released():
            self.consumption.consumed(dropped.partition, dropped.offset)

    def in_the_air(self) -> int:
        """Count the rollouts that were requested and whose end has not been read."""
        return self.ledger.running() + self.evaluations.missing()

    def give_up(self) -> None:
        """Give up rollouts in flight, if all of them may have come as unreadable records."""
        if 0 < self.in_the_air() <= self.unaccounted:
            lost = self.buffer.give_up() + self.evaluations.give_up()
            self.unaccounted -= lost
            self.note_dropped()
            log.warning("rollouts_given_up", rollouts=lost)


def event_id(record: Record) -> str | None:
    """Return the CloudEvents id in a record's headers."""
    value = dict(record.headers or ()).get("ce_id")
    return None if value is None else value.decode(errors="replace")


def end_of(
    record: Record, requests: Iterable[RolloutRequest], scoring_id: str
) -> ScoredTrajectory | None:
    """Return an unreadable end of the request that the record's id names, under this scoring."""
    name = event_id(record)
    for request in requests:
        for attempt in range(request.limits.max_attempts + 1):
            if name == scored_id(request.rollout_id, attempt, scoring_id):
                return _bare(request, attempt, scoring_id)
    return None


def _bare(request: RolloutRequest, attempt: int, scoring_id: str) -> ScoredTrajectory:
    trajectory = Trajectory(
        rollout_id=request.rollout_id,
        attempt=attempt,
        status="unreadable",
        request=request,
        policies=(),
        sequences=None,
        steps=None,
        model_calls=0,
        sampled_tokens=0,
        failures=0,
        journal_partition=0,
        first_offset=0,
        last_offset=0,
        started_ms=0,
        ended_ms=0,
    )
    return ScoredTrajectory(scoring_id, trajectory, (), None, "", 0, 0, "unreadable")
