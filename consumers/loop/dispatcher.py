"""Hands held records to the role as decoded messages, in turns, poison suspects alone."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import inf
from typing import Any

import structlog

from rollcall.consumers.log.protocols import Record, TopicPartition
from rollcall.consumers.loop.commits import Commits
from rollcall.consumers.loop.dead_letters import DeadLetters, log_held_partition, log_unavailable
from rollcall.consumers.loop.partition_progress import PartitionProgress
from rollcall.consumers.loop.poison_detection import ALONE, DEATHS, FEW, FEW_RECORDS, FREE
from rollcall.consumers.loop.role import Role
from rollcall.schemas.codec import Codec
from rollcall.schemas.errors import (
    KilledWorkers,
    Unavailable,
    UnknownSchema,
    WireError,
)

RETRY_S = 1.0
TURN_S = 0.5
"""The time in which one turn hands over records, so that the loop comes
round whatever one costs."""
POLL_RECORDS = 500
"""The most records of one poll."""

log = structlog.get_logger()


@dataclass(eq=False)
class Dispatcher:
    """Hands the role the held records of its partitions within a turn's time."""

    role: Role
    partitions: Mapping[TopicPartition, PartitionProgress]
    codec: Codec
    dead_letters: DeadLetters
    commits: Commits
    clock: Callable[[], float]
    counts: Counter[str]
    cut: TopicPartition | None = None
    """The partition at which the last turn ran out of time; the next poll then need not wait."""
    _skipped_due: float = 0.0
    """The time of the next refresh of the records to pass over."""
    _skipped_known: bool = False
    _retry_due: float = 0.0
    _most: int = POLL_RECORDS

    def __post_init__(self) -> None:
        self.quarantine = Quarantine(self.role, self.commits)

    def poll_limit(self) -> int:
        """Return the number of records to poll: the held ones count as polled."""
        held = [progress for progress in self.partitions.values() if progress.held]
        backlog = sum(len(progress.held) for progress in held if not self.role.waits(progress))
        return max(1, self._most - backlog)

    def refresh_skipped(self) -> None:
        """Refresh the records to pass over at the next turn: an operator may have added some."""
        self._skipped_due = self.clock()

    def turn(self) -> int:
        """Hand over held records within the turn's time; return the number of records handed.

        If the time runs out before all are handed, fewer are polled from then on.
        """
        waiting = self._due() if self._knows_skipped() else []
        before = sum(len(progress.held) for progress in waiting)
        self.cut = None
        if waiting:
            self._hand(waiting)
        handed = before - sum(len(progress.held) for progress in waiting)
        self._most = min(POLL_RECORDS, 2 * self._most) if self.cut is None else max(1, handed)
        return handed

    def _knows_skipped(self) -> bool:
        """Return True if the records to pass over are known.

        They are read right after an assignment, so that no record has to wait for it.
        """
        if self.clock() >= self._skipped_due:
            try:
                self.dead_letters.skipped.refresh()
            except Unavailable as error:
                self._skipped_due, self._skipped_known = self.clock() + RETRY_S, False
                log.warning("dead_letters_not_read", error=str(error))
            else:
                self._skipped_due, self._skipped_known = inf, True
        return self._skipped_known

    def _due(self) -> list[PartitionProgress]:
        """Return the partitions with records to hand over; the one that was cut off comes last."""
        retry = self.clock() >= self._retry_due
        order = list(self.partitions.values())
        if self.cut is not None and self.cut in self.partitions:
            # Begin behind the partition that was cut off, so that each has its turn.
            first = list(self.partitions).index(self.cut) + 1
            order = order[first:] + order[:first]
        return [
            progress
            for progress in order
            if progress.held and (retry or not progress.away) and not self.role.waits(progress)
        ]

    def _hand(self, waiting: list[PartitionProgress]) -> None:
        """Hand over records of all partitions, or one suspect alone when nothing is in flight."""
        suspect = next((progress for progress in waiting if progress.next_is_isolated()), None)
        if suspect is None:
            self.quarantine.end(waiting)
            self.role.handle(self._handing(waiting, self.clock() + TURN_S))
        elif self.role.in_flight():
            suspect.suspicion.end_if_overdue(self.clock())  # other records wait for this one
        elif suspect.suspicion.is_in_control(suspect.held[0].offset, self.clock()):
            self.quarantine.wait(suspect)
        elif self.quarantine.isolate(suspect, self.clock()):
            self.role.handle(self._handing([suspect], self.clock() + TURN_S))
            self.cut = suspect.topic, suspect.number

    def _handing(
        self, waiting: list[PartitionProgress], until: float
    ) -> Iterator[tuple[Record, Any]]:
        """Yield record by record: each is decoded after those before it have been handled."""
        for progress in waiting:
            limit, expected = self._dispatch_limit(progress), self.role.expects(progress.topic)
            while progress.held and limit > 0:
                if self.clock() >= until:
                    self.cut = progress.topic, progress.number
                    return
                record = progress.held[0]
                message: Any
                try:
                    message = self._decode(progress, record, expected)
                except Unavailable as error:
                    self._wait_for_service(progress, error)
                    break
                except WireError as error:
                    if record.topic in self.role.journals and another_may_read(error):
                        self._wait_for_schema(progress, record, error)
                        break
                    self._note_dispatched(progress)
                    if record.offset >= progress.floor:  # else buried when it was first read
                        self.role.unreadable(record, error)
                        self.dead_letters.bury(record, error)
                else:
                    self._note_dispatched(progress)
                    if progress.suspicion.deaths and progress.suspicion.is_poison(record.offset):
                        self._bury_poison(record, message)
                    else:
                        self.dead_letters.read()
                        yield record, message
                limit -= 1
                if progress.held and not limit:
                    self.cut = progress.topic, progress.number
                    self.commits.hasten()  # so that a commit is near if it kills

    def _dispatch_limit(self, progress: PartitionProgress) -> int:
        """Return the number of held records of a partition that may be handed over now."""
        if progress.away and self.clock() < self._retry_due:
            return 0  # another record of it failed a moment ago
        if progress.suspicion.level < FEW:
            return len(progress.held)
        below = sum(record.offset < progress.floor for record in progress.held)
        most = 1 if progress.suspicion.level == ALONE else FEW_RECORDS - self.role.in_flight()
        return below or most

    def _decode(self, progress: PartitionProgress, record: Record, expected: type) -> Any:
        """Decode a record; raises WireError, also if it is passed over, and Unavailable."""
        skipped, deaths = self.dead_letters.skipped, progress.suspicion.deaths
        if skipped.skips or skipped.places:
            skipped.check(record)
        if deaths and deaths.get(record.offset, 0) > DEATHS:
            raise self._poison_error(record)  # the refusal killed workers as well
        return self.codec.decode(record.value, expected)

    def _note_dispatched(self, progress: PartitionProgress) -> None:
        record = progress.held.popleft()
        progress.away = False
        if record.offset >= progress.floor:
            progress.handed = record.offset
            if progress.suspicion.level > FREE:
                progress.suspicion.note_dispatched(record.offset, self.clock())

    def _wait_for_service(self, progress: PartitionProgress, error: Unavailable) -> None:
        progress.away = True
        self._retry_due = self.clock() + RETRY_S
        log_unavailable(progress.topic, error)

    def _wait_for_schema(
        self, progress: PartitionProgress, record: Record, error: WireError
    ) -> None:
        """Hold the partition: a reader that knows the schema would
        otherwise fold another history."""
        progress.away = True
        self._retry_due = self.clock() + RETRY_S
        self._skipped_due = self._retry_due  # an operator's order to skip is read there
        if progress.stuck != record.offset:
            progress.stuck = record.offset
            place = f"{record.partition}@{record.offset}"
            log_held_partition(
                record,
                error,
                "bring the schema back, upgrade this worker, or, with all workers of "
                "the group stopped, `rollcall dlq skip "
                f"{self.dead_letters.group} {record.topic} {place}`",
            )

    def _bury_poison(self, record: Record, message: Any) -> None:
        verdict = self._poison_error(record)
        for progress in self.partitions.values():
            progress.suspicion.note_other_cause(self.clock())
        if not self.role.fatal(record, message, verdict):
            self.dead_letters.bury(record, verdict)

    def _poison_error(self, record: Record) -> KilledWorkers:
        place = f"{record.topic} {record.partition}@{record.offset}"
        self.counts["poison_records"] += 1
        group = self.dead_letters.group
        log.error("poison_record_found", place=place, group=group)
        msg = (
            f"{DEATHS} workers of {group} died while only {place} was in flight; see the ends of "
            "their logs (a crash, out of memory, the watchdog), fix the cause and write it again"
        )
        return KilledWorkers(msg)


@dataclass(eq=False)
class Quarantine:
    """Puts at most one partition's next record on trial, with nothing else in flight.

    The record may kill its worker, so it is handed over only after a commit states that it is
    alone.
    """

    role: Role
    commits: Commits
    _isolated: PartitionProgress | None = None

    def end(self, waiting: list[PartitionProgress]) -> None:
        """Commit that many records are in flight, before the first of a partition is.

        If nothing is suspected no mark is written, and nothing waits for the commit.
        """
        fresh = [
            p
            for p in waiting
            if p.suspicion.level > FREE and p.handed < p.floor <= p.held[-1].offset
        ]
        for progress in fresh:
            progress.handed = next(r.offset for r in progress.held if r.offset >= progress.floor)
        if self._isolated is not None:
            self._isolated.suspicion.release()  # also if it is unfinished: its time is over
        if fresh or self._isolated is not None:
            self._isolated = None
            self.commits.now()

    def isolate(self, progress: PartitionProgress, now: float) -> bool:
        """Commit that the next record is in flight alone; False if the commit was refused."""
        if self._isolated is not None:
            self._isolated.suspicion.release()
        self._isolated = progress
        progress.handed = progress.held[0].offset
        progress.suspicion.isolate(progress.handed, now)
        return self.commits.now()

    def wait(self, progress: PartitionProgress) -> None:
        """Commit that nothing is in flight, so that a death would count against no record."""
        if not progress.suspicion.controls:
            progress.suspicion.alone, progress.suspicion.controls = None, True
            progress.handed = progress.held[0].offset
            self.commits.now()

    def release(self, now: float) -> None:
        """End the trial if nothing is in flight any more, or if its time is over.

        The next commit states it.
        """
        isolated = self._isolated
        if isolated is None or isolated.suspicion.alone is None:
            return
        if self.role.in_flight():
            if now < isolated.suspicion.until:
                return
            isolated.suspicion.end_if_overdue(now)
        isolated.suspicion.release()
        self.commits.hasten()


def another_may_read(error: WireError) -> bool:
    """Return True if the bytes may be valid and only their schema is unavailable here.

    A schema of another record type is as often a wrong registry's answer as a stray record.
    """
    return isinstance(error, UnknownSchema)
