"""What comes of a run's rollouts: into the buffer, the evaluations, and what was consumed.

An unreadable record may be the end of one of them. Where it says whose, that one has ended; where
it does not, it is counted, and when nothing else is left to wait for, what is missing is given up.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace

import structlog

from consumers.decode_in_order import decoded
from consumers.log.epochs import UNKNOWN, Epochs
from consumers.log.protocols import Log, Reader, Record
from consumers.training.announcement import Announcements
from consumers.training.evaluations import Evaluations
from producers.curators.curriculum import Curriculum
from schemas.ids import draw_of, scored_id
from schemas.messages import REPEATED, RolloutRequest, ScoredTrajectory, Trajectory
from trainer.accounts import Accounts
from trainer.checkpoint import Checkpoint
from trainer.consumption import Consumption, Leader, counted
from trainer.curation import Buffer

FARTHEST = 10_000
"""So many draws may be missing below one that is met first: its partition is read sooner."""

log = structlog.get_logger()


@dataclass(eq=False)
class Intake:
    """Takes scored trajectories in, one record after the other."""

    words: Announcements
    curriculum: Curriculum
    buffer: Buffer
    consumption: Consumption
    evaluations: Evaluations
    unaccounted: int = 0
    """Unreadable records that may have been some of those in the air."""

    def __post_init__(self) -> None:
        self._epochs: defaultdict[int, Epochs] = defaultdict(Epochs)
        """By partition, of what was read."""
        self.codec, self.run, self.learner = self.words.codec, self.words.run, self.words.learner

    @property
    def accounts(self) -> Accounts:
        return self.buffer.accounts

    def restore(self, held: Checkpoint) -> None:
        """Go on where a checkpoint stood."""
        self.buffer.restore(held.recent if held.book else (), held.drops, held.used)
        self.unaccounted = held.book.unreadable if held.book else 0
        for topic, partition, offset, epoch in held.leaders:
            if topic == self.consumption.topic:
                self._epochs[partition] = Epochs(offset, epoch)
        self.words.begin(self.buffer.drops())

    def reader(self, log_: Log, scored: str) -> Reader:
        """Read scored trajectories from the lowest not consumed."""
        starts = {tp: at for tp, at in self.run.starts.items() if tp[0] == scored}
        for mark in self.consumption.marks():
            starts[mark.topic, mark.partition] = mark.next_offset
        return log_.reader([scored], starts)

    def leaders(self) -> tuple[Leader, ...]:
        """Who wrote the last record that is consumed of each partition, where that is known."""
        found = []
        for mark in self.consumption.marks():
            place = mark.topic, mark.partition, counted(mark)
            found.append(Leader(*place, self._epochs[mark.partition].before(counted(mark))))
        return tuple(leader for leader in found if leader.epoch != UNKNOWN)

    def offer(self, record: Record) -> None:
        """Sort one record in; raises Unavailable where it has to be offered again."""
        self._epochs[record.partition].saw(record.offset, record.leader_epoch)
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
            self.curriculum.hear(scored)
            self._learn_of_draw(scored)
            self.buffer.offer(scored, record.partition, record.offset)

    def _learn_of_draw(self, scored: ScoredTrajectory) -> None:
        """Who does not admit hears of draws by what comes of them; all below were published too."""
        request = scored.trajectory.request
        if self.run.admits or request is None or request.purpose != "train":
            return
        draw = draw_of(self.run.run_id, request.group_id)
        if draw < self.accounts.low or request.run_id != self.run.run_id:
            return
        if draw >= self.accounts.next_draw + FARTHEST:
            return
        known, size = draw < self.accounts.next_draw, request.group_size
        if known and size >= self.curriculum.group_size:
            return
        # A made-up number would be waited for; the ids of a draw's members cannot be.
        if request.rollout_id in self.curriculum.draws.ids(draw):
            self.accounts.published(draw, size)

    def _named(self, record: Record) -> ScoredTrajectory | None:
        """Whose end an unreadable record is; where it does not say, it may be anybody's."""
        if event_id(record) is None:
            self.unaccounted = min(self.unaccounted + 1, self.in_the_air())
            return None
        group = (record.key or b"").decode(errors="replace")
        draw = draw_of(self.run.run_id, group)
        if 0 <= draw < self.accounts.next_draw:
            return end_of(record, self._drawn(draw), self.run.scoring_id)
        return end_of(record, self.evaluations.requests_of(group), self.run.scoring_id)

    def _requested(self, scored: ScoredTrajectory) -> ScoredTrajectory:
        """With its request, where that was one of ours: it is left out where nobody could read it.

        What was only asked for again has not ended.
        """
        trajectory = scored.trajectory
        if trajectory.code == REPEATED:
            return scored
        name = trajectory.rollout_id
        draw = self.accounts.drawn.with_member(name)
        group, _, _ = name.rpartition("/")
        requests = self.evaluations.requests_of(group) if draw < 0 else self._drawn(draw)
        request = next((request for request in requests if request.rollout_id == name), None)
        return replace(scored, trajectory=replace(trajectory, request=request))

    def _drawn(self, draw: int) -> list[RolloutRequest]:
        """The members of a draw under the ids that they go by now."""
        return [
            replace(request, rollout_id=self.accounts.drawn.name_of(draw, request.rollout_id))
            for request in self.curriculum.group(draw)
        ]

    def note_dropped(self) -> None:
        """What the buffer let go of is consumed."""
        for dropped in self.buffer.released():
            self.consumption.consumed(dropped.partition, dropped.offset)

    def in_the_air(self) -> int:
        """All that was asked for and whose end has not been read."""
        return self.accounts.running() + self.evaluations.missing()

    def give_up(self) -> None:
        """Where all that is in the air has come, though unreadable, go on without it."""
        if 0 < self.in_the_air() <= self.unaccounted:
            lost = self.buffer.give_up() + self.evaluations.give_up()
            self.unaccounted -= lost
            self.note_dropped()
            log.warning("rollouts_given_up", rollouts=lost)


def event_id(record: Record) -> str | None:
    """The CloudEvents id in a record's headers."""
    value = dict(record.headers or ()).get("ce_id")
    return None if value is None else value.decode(errors="replace")


def end_of(
    record: Record, requests: Iterable[RolloutRequest], scoring_id: str
) -> ScoredTrajectory | None:
    """The bare end of the one of these requests that the record names, under this scoring."""
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
