"""Checks that the offsets in a checkpoint still exist in the log; a loss must be accepted.

A checkpoint records how far it has consumed. In a log that was truncated, or in a topic that was
deleted and created again, other records are at these offsets.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import structlog

from rollcall.consumers.log.epochs import UNKNOWN
from rollcall.consumers.log.protocols import Commit, Log, TopicPartition
from rollcall.consumers.loop.lost_tail import LostTail
from rollcall.consumers.training.training_run import TrainingRun
from rollcall.schemas.errors import JournalGone
from rollcall.schemas.messages import Consumed
from rollcall.schemas.topics import Topics
from rollcall.trainer.checkpoints.checkpoint import Checkpoint
from rollcall.trainer.checkpoints.consumption import counted
from rollcall.trainer.curation.replay import ReplayState
from rollcall.trainer.rules.samples import ScoredPlace

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class LostHead:
    """Records that retention has deleted before they were consumed."""

    topic: str
    partition: int
    wanted: int
    goes_on: int

    def __str__(self) -> str:
        return (
            f"{self.topic} {self.partition} begins at {self.goes_on}, but offset {self.wanted} is "
            "needed; retention has passed it"
        )


Lost = LostTail | LostHead
Gone = Mapping[TopicPartition, int]
"""The offset to continue at, for partitions that have lost records."""


@dataclass(frozen=True, slots=True)
class Beginning:
    """The run and the checkpoint that a trainer begins with."""

    run: TrainingRun
    held: Checkpoint | None
    lost: tuple[Lost, ...] = ()
    """The accepted losses."""


class LostOffsets:
    """Compares a trainer's offsets with the log."""

    def __init__(
        self, log_: Log, topics: Topics, run: TrainingRun, held: Checkpoint | None
    ) -> None:
        self.log = log_
        self.scored = topics.scored
        self.run = run
        self.held = held
        names = topics.scored, topics.requests, topics.train_steps
        self.ids = {name: log_.topic_id(name) for name in names}
        self.bounds = {name: log_.bounds(name) for name in names}

    def beginning(self, *, accept: bool) -> Beginning:
        """Return run and checkpoint without lost records. Raises JournalGone if not accepted."""
        lost = tuple(self._lost())
        if lost and not accept:
            more = f" ({len(lost) - 1} more partitions have lost records, too)" if lost[1:] else ""
            msg = (
                f"{lost[0]}{more}. To continue from what is left, restart with --accept-truncation"
            )
            raise JournalGone(msg)
        for each in lost:
            log.warning("loss_accepted", run=self.run.run_id, lost=str(each))
        return self._without(lost) if lost else Beginning(self.run, self.held)

    def _lost(self) -> Iterator[Lost]:
        marks = self._marks()
        anew = [mark for mark in marks if self._is_anew(mark)]
        for mark in anew:
            low = self.bounds[mark.topic].get(mark.partition, (0, 0))[0]
            yield LostTail(mark.topic, mark.partition, counted(mark), low, True, "counted")
        there = [mark for mark in marks if mark not in anew]
        cuts = self.log.cuts([self._position(mark) for mark in there])
        for mark in there:
            tp = mark.topic, mark.partition
            low = self.bounds[mark.topic][mark.partition][0]
            if tp in cuts:
                yield LostTail(*tp, counted(mark), max(cuts[tp], low), False, "counted")
            # Other topics are read from what retention left; unconsumed scored records are a loss.
            elif mark.topic == self.scored and mark.next_offset < low:
                yield LostHead(*tp, mark.next_offset, low)

    def _marks(self) -> list[Consumed]:
        """Return the checkpoint's offsets, and for all other partitions the start of the run."""
        held = (*self.held.consumed, *self.held.book.asked) if self.held else ()
        starts = (Consumed(*tp, at, ()) for tp, at in self.run.starts.items())
        known = {(mark.topic, mark.partition): mark for mark in (*starts, *held)}
        return [mark for mark in known.values() if mark.topic in self.ids]

    def _is_anew(self, mark: Consumed) -> bool:
        if mark.partition not in self.bounds[mark.topic]:
            return True
        return mark.topic_id not in ("", self.ids[mark.topic])

    def _position(self, mark: Consumed) -> Commit:
        place = mark.topic, mark.partition, counted(mark)
        leaders = self.held.leaders if self.held else ()
        epoch = next((each.epoch for each in leaders if each[:3] == place), UNKNOWN)
        return Commit(*place, "", epoch)

    def _without(self, lost: tuple[Lost, ...]) -> Beginning:
        """Return run and checkpoint without the lost offsets and without topics created anew."""
        gone = {(each.topic, each.partition): each.goes_on for each in lost}
        anew = {each.topic for each in lost if isinstance(each, LostTail) and each.made_anew}
        starts = self.run.starts.items()
        kept = {tp: at for tp, at in starts if tp not in gone and tp[0] not in anew}
        run, held = replace(self.run, starts=kept), self.held
        if held is None:
            return Beginning(run, None, lost)
        book = replace(held.book, asked=self._repaired(held.book.asked, gone, anew))
        held = replace(
            held,
            consumed=self._repaired(held.consumed, gone, anew),
            book=book,
            replay=self._replayed(held.replay, gone, anew),
            leaders=tuple(each for each in held.leaders if each[:2] not in gone),
        )
        return Beginning(run, held, lost)

    def _repaired(
        self, marks: tuple[Consumed, ...], gone: Gone, anew: set[str]
    ) -> tuple[Consumed, ...]:
        """Lower offsets to what is left; a topic created anew starts at its beginning."""
        repaired = []
        for mark in marks:
            at = gone.get((mark.topic, mark.partition))
            if mark.topic not in anew and at is not None:
                low = self.bounds[mark.topic][mark.partition][0]
                above = tuple(offset for offset in mark.above if offset < at)
                next_offset = max(low, min(mark.next_offset, at))
                repaired.append(replace(mark, next_offset=next_offset, above=above))
            elif mark.topic not in anew:
                repaired.append(mark)
        for topic in anew & {mark.topic for mark in marks}:
            for number, (low, _) in sorted(self.bounds[topic].items()):
                repaired.append(Consumed(topic, number, low, (), self.ids[topic]))
        return tuple(repaired)

    def _replayed(self, book: ReplayState, gone: Gone, anew: set[str]) -> ReplayState:
        """Keep the samples for replay whose offsets still hold them."""

        def is_there(place: ScoredPlace) -> bool:
            number, offset = place
            return self.scored not in anew and offset < gone.get((self.scored, number), offset + 1)

        return replace(
            book,
            groups=tuple(group for group in book.groups if all(map(is_there, group[1]))),
            successes=tuple(success for success in book.successes if is_there(success[1])),
        )
