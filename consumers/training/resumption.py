"""The state that a restarting trainer reads from the log: announced, requested, consumed.

The content of a checkpoint is not read again: requests are read from the offsets at which it was
saved, and from the beginning of the run only if curators need all of them.
"""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import chain

import structlog

from rollcall.consumers.heldout import MARK
from rollcall.consumers.log.protocols import Log, Record, TopicPartition
from rollcall.consumers.log.reading import read_all, read_between, spans
from rollcall.consumers.loop.decode_in_order import decoded
from rollcall.consumers.training.training_run import TrainingRun
from rollcall.producers.admission import PublishedRequests
from rollcall.producers.curators.curriculum import Curriculum
from rollcall.schemas.bounds import VERSIONS_END
from rollcall.schemas.codec import Codec
from rollcall.schemas.messages import (
    Consumed,
    PolicyVersion,
    RolloutRequest,
    ScoredTrajectory,
    TrainStep,
)
from rollcall.schemas.topics import Topics
from rollcall.trainer.checkpoints.checkpoint import Checkpoint
from rollcall.trainer.checkpoints.consumption import Asked, Leader
from rollcall.trainer.curation.buffer import Buffer
from rollcall.trainer.curation.drawn_groups import LedgerState
from rollcall.trainer.curation.group_ledger import GroupLedger
from rollcall.trainer.curation.judge import judge
from rollcall.trainer.curation.replay import ReplayState
from rollcall.trainer.rules.samples import ScoredPlace


def scored_at(
    log: Log, codec: Codec, topic: str, places: Collection[ScoredPlace]
) -> Iterator[tuple[ScoredPlace, ScoredTrajectory]]:
    """Read scored trajectories again by their offsets. Raises Unavailable.

    Those that retention has deleted, or that are unreadable, are left out.
    """
    if not places:
        return
    stretches = (((topic, number), at, at) for number, at in places)
    for record in chain.from_iterable(read_between(log, *spans(log, stretches))):
        place = record.partition, record.offset
        if place in places:
            scored = decoded(codec, record, ScoredTrajectory)
            if scored is not None:
                yield place, scored


log = structlog.get_logger()


@dataclass(slots=True)
class NewestOnLog:
    """The newest announcements of a policy in the log before its trainer continues."""

    highest_version: int = -1
    highest_step_record: int = -1
    last_run_id: str = ""
    """The run that announced the newest version in the log; empty if that record is invalid."""


@dataclass(slots=True)
class RunRequests:
    """The requests found of a run: its draws from some draw on, and its evaluations."""

    published: PublishedRequests
    evaluations: set[str] = field(default_factory=set)

    def take(self, request: RolloutRequest) -> None:
        draw = self.published.take(request)
        if (
            draw < 0
            and request.purpose == "evaluate"
            and request.group_id.startswith(f"{self.published.run_id}{MARK}")
        ):
            self.evaluations.add(request.rollout_id)


@dataclass(frozen=True, slots=True)
class Resumption:
    """The state that a trainer continues with."""

    ledger: GroupLedger
    asked: Asked
    unfinished: tuple[RolloutRequest, ...]
    """Members of begun groups that were not published because of a crash."""
    evaluations: frozenset[str]
    """Rollouts of held-out evaluations that need not be requested again."""
    highest_draw: int
    """The highest published draw, once the unfinished are published."""
    continued: tuple[tuple[int, str], ...] = ()
    """Draws and ids of later requests that continue a cancelled rollout."""


@dataclass(frozen=True, slots=True)
class RunLog:
    """The log of one run, as its trainer reads it once at the start."""

    log: Log
    codec: Codec
    topics: Topics
    run: TrainingRun

    def announced(self) -> NewestOnLog:
        """Read the announcements of the policy; skip unreadable records, which are not ours."""
        seen = NewestOnLog()
        for record in read_all(self.log, [self.topics.versions, self.topics.train_steps]):
            if record.key != self.run.policy_id.encode() or record.value is None:
                continue
            if record.topic == self.topics.versions:
                announcement = decoded(self.codec, record, PolicyVersion)
                version = _number(record, announcement)
                seen.highest_version = max(seen.highest_version, version)
                seen.last_run_id = announcement.run_id if announcement and version >= 0 else ""
            else:
                version = _number(record, decoded(self.codec, record, TrainStep))
                seen.highest_step_record = max(seen.highest_step_record, version)
        return seen

    def known(self, held: Checkpoint | None, curriculum: Curriculum) -> Resumption:
        """Return the ledger of the newest checkpoint, and the requests written since.

        If curators choose the draws, they are given all results of the run's draws so far.
        """
        book = held.book if held else LedgerState()
        asked = self._asked(held)
        read_from = self.begin(self.topics.requests) if curriculum.curators else asked.marks
        size = curriculum.group_size
        requests = self._requests(read_from, book.next_draw, size)
        ledger = GroupLedger(self.run.run_id, size, book)
        self._leave_out_made_up(requests.published, ledger, held)
        curriculum.knows(requests.published.drawn)
        self._replay_results(curriculum, ledger)
        version = held.version if held else -1
        unfinished = requests.published.unfinished(partial(curriculum.next_group, version=version))
        return Resumption(
            ledger,
            asked,
            tuple(unfinished),
            frozenset(requests.evaluations),
            requests.published.highest_draw,
            tuple(requests.published.continued),
        )

    def _replay_results(self, curriculum: Curriculum, ledger: GroupLedger) -> None:
        """Pass the results of every draw to the curators; read nothing if there are none."""
        if not curriculum.curators:
            return
        starts = _starts(self.begin(self.topics.scored))
        for record in read_all(self.log, [self.topics.scored], starts):
            scored = decoded(self.codec, record, ScoredTrajectory)
            if scored is not None:
                curriculum.hear(scored)
        curriculum.settle(ledger.low)
        log.info("curators_resumed", draws=curriculum.outcomes.next_draw)

    def replay(self, buffer: Buffer, book: ReplayState) -> None:
        """Read the samples for replay; log and forget those that retention has deleted."""
        wanted = book.places()
        samples = {
            place: judge(scored, *place, buffer.curation).sample
            for place, scored in scored_at(self.log, self.codec, self.topics.scored, wanted)
        }
        gone = buffer.replay.restore(book, samples.get)
        if gone:
            log.warning("replay_records_lost", records=len(gone), kept=len(wanted) - len(gone))

    def begin(self, topic: str, marks: Iterable[Consumed] = ()) -> tuple[Consumed, ...]:
        """Return the offsets to read from: marks, else the start of the run, or the low watermark.

        Marks are valid, since `LostOffsets` has checked them; a start beyond the end is not.
        """
        topic_id = self.log.topic_id(topic)
        saved = {mark.partition: mark.next_offset for mark in marks}
        marks_now = []
        for number, (low, end) in sorted(self.log.bounds(topic).items()):
            wanted = saved.get(number, self.run.starts.get((topic, number), low))
            start = wanted if low <= wanted <= end else low
            marks_now.append(Consumed(topic, number, start, (), topic_id))
        return tuple(marks_now)

    def asked_now(self) -> Asked:
        """Return the current end of the request topic: all requests so far are below it."""
        topic = self.topics.requests
        topic_id, ends = self.log.topic_id(topic), self.log.ends(topic)
        return Asked(
            tuple(Consumed(topic, end.partition, end.offset, (), topic_id) for end in ends),
            tuple(Leader(topic, end.partition, end.offset, end.leader_epoch) for end in ends),
        )

    def _asked(self, held: Checkpoint | None) -> Asked:
        """Return the position in the request topic by the checkpoint, or the start of the run."""
        topic, leaders = self.topics.requests, held.leaders if held else ()
        marks = self.begin(topic, held.book.asked if held else ())
        return Asked(marks, tuple(leader for leader in leaders if leader.topic == topic))

    def _leave_out_made_up(
        self, published: PublishedRequests, ledger: GroupLedger, held: Checkpoint | None
    ) -> None:
        """Limit the published draws to the number that admission can have granted.

        Anyone can compute the ids of future draws and request them. Admission grants only while
        fewer than the rule's `max_running` are running, and all others have been scored by now.
        """
        size, rule = ledger.group_size, self.run.rule
        room = rule.max_running + (rule.batch if self.run.barrier else 0)
        if not size or (published.highest_draw + 1) * size <= ledger.ended() + room:
            return
        came = self._came(held.consumed if held else ())
        most = (ledger.ended() + published.empty_seats() + came + room) // size
        beyond = published.keep_below(most)
        if beyond:
            log.warning("draws_reconstructed", draws=beyond, published=published.highest_draw + 1)

    def _came(self, consumed: Iterable[Consumed]) -> int:
        """Count rollouts of the run that were, or may have been, scored and are not consumed."""
        marks = self.begin(self.topics.scored, consumed)
        above = {mark.partition: set(mark.above) for mark in consumed}
        came, unread = set[str](), 0
        for record in read_all(self.log, [self.topics.scored], _starts(marks)):
            if record.offset in above.get(record.partition, ()):
                continue
            scored = decoded(self.codec, record, ScoredTrajectory)
            request = scored.trajectory.request if scored else None
            unread += request is None
            if scored and request and self._is_of_run(scored, request):
                came.add(scored.trajectory.rollout_id)
        return len(came) + unread

    def _is_of_run(self, scored: ScoredTrajectory, request: RolloutRequest) -> bool:
        ours = request.run_id == self.run.run_id and request.purpose == "train"
        return ours and scored.scoring_id == self.run.scoring_id

    def _requests(self, marks: Iterable[Consumed], first_draw: int, size: int) -> RunRequests:
        requests = RunRequests(PublishedRequests(self.run.run_id, first_draw, size))
        for record in read_all(self.log, [self.topics.requests], _starts(marks)):
            request = decoded(self.codec, record, RolloutRequest)
            if request is not None:
                requests.take(request)
        return requests


def _starts(marks: Iterable[Consumed]) -> dict[TopicPartition, int]:
    return {(mark.topic, mark.partition): mark.next_offset for mark in marks}


def _number(record: Record, announcement: PolicyVersion | TrainStep | None) -> int:
    """Return the version that a record announces; -1 if it is unreadable or out of range."""
    if announcement is None or announcement.version < VERSIONS_END:
        return -1 if announcement is None else announcement.version
    place = {"topic": record.topic, "partition": record.partition, "offset": record.offset}
    log.warning(
        "version_out_of_range", **place, version=announcement.version, run_id=announcement.run_id
    )
    return -1
