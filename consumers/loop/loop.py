"""The worker loop: poll, decode, handle, send, commit.

Its invariant: a record counts as finished when its handler has closed it and all its outputs are
acked, and the committed offset is the first that is not finished. After a crash the unfinished
records are read again; their answers are written once more, and the fold ignores them. A record
that kills its workers is found by the marks in commits (`poison_detection`), and set aside.

One thread owns source, publisher and role. Work on other threads hands back its results in batches.
"""

import faulthandler
import gc
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

import structlog

from rollcall.consumers.log.protocols import Held, Log, TopicPartition
from rollcall.consumers.loop.commits import Commits
from rollcall.consumers.loop.dead_letters import DeadLetters
from rollcall.consumers.loop.dispatcher import POLL_RECORDS, Dispatcher
from rollcall.consumers.loop.lost_tail import lost_tail
from rollcall.consumers.loop.partition_progress import PartitionProgress
from rollcall.consumers.loop.poison_detection import read_suspicion, split_metadata
from rollcall.consumers.loop.role import Role
from rollcall.producers.publisher import Publisher
from rollcall.schemas.codec import Codec
from rollcall.schemas.errors import JournalGone

DRAIN_S = 20.0
ARM_EVERY_S = 5.0
REVOKE_S = 5.0
LEAVE_S = 120.0
"""A client that has not left the group after that never will; no finished work is lost."""
CONGESTED_RECORDS = 25_000
"""The most records that may wait for acks before partitions are paused."""
GC_THRESHOLDS = (500_000, 50, 1000)
"""Thresholds of Python's collector; with the defaults, thousands of live rollouts, none of them
garbage, are traversed so often that it takes a sixth of a worker's time."""

log = structlog.get_logger()


class Loop:
    """Runs one role on one log."""

    def __init__(
        self,
        log_: Log,
        role: Role,
        codec: Codec,
        publishers: Sequence[Publisher],
        dead_letters: DeadLetters,
        *,
        clock: Callable[[], float] = time.monotonic,
        accept_truncation: bool = False,
    ) -> None:
        self.role = role
        self.publishers = publishers
        self.dead_letters = dead_letters
        self.clock = clock
        self.accept_truncation = accept_truncation
        self.partitions: dict[TopicPartition, PartitionProgress] = {}
        self.counts: Counter[str] = Counter()
        # Read all of them now; an assignment then reads only the new ones.
        dead_letters.skipped.refresh()
        self.source = log_.source(dead_letters.group, role.topics, self)
        self.commits = Commits(self.source, role, self.partitions, dead_letters, clock)
        self.dispatcher = Dispatcher(
            role, self.partitions, codec, dead_letters, self.commits, clock, self.counts
        )

    def turn(self, timeout_s: float = 0.1) -> int:
        """Take one batch through the role; return how many records moved.

        1. poll  2. decode and handle  3. do due work  4. count acks  5. commit finished records

        Outputs of the batch are sent at once, before the rest of the turn.
        """
        waited_s = timeout_s if self.dispatcher.cut is None else 0.0
        records = self.source.poll(waited_s, self.dispatcher.poll_limit())
        for record in records:
            progress = self.partitions.get((record.topic, record.partition))
            if progress is not None and not progress.receive(record):
                self.counts["finished_before"] += 1
        handed = self.dispatcher.turn()
        if handed:
            self._push()
        self._note_ends()
        self.role.tick()
        self.dispatcher.quarantine.release(self.clock())
        self._count_acks()
        self.commits.in_time(handed)
        self._pause_and_resume()
        return max(len(records), handed)

    def run(
        self,
        stopping: Callable[[], bool],
        *,
        wedged_s: float = 60.0,
        patient: Callable[[], bool] = lambda: False,
    ) -> None:
        """Turn until told to stop; then let work in flight finish, commit, and leave the group.

        A loop that does not turn for `wedged_s` dumps all stacks and exits the process.
        """
        gc.set_threshold(*GC_THRESHOLDS)
        armed = -ARM_EVERY_S
        while not stopping():
            if self.clock() - armed > ARM_EVERY_S:
                armed = self.clock()
                faulthandler.dump_traceback_later(wedged_s + ARM_EVERY_S, exit=True)
            self.turn(self.wait_s())
        faulthandler.cancel_dump_traceback_later()
        self.stop(patient=patient)

    def wait_s(self) -> float:
        """Return the timeout of the next poll: short while work is in flight elsewhere."""
        if self.role.in_flight():
            return self.role.poll_s
        return 0.02 if self._waiting() else 0.1

    def stop(
        self, drain_s: float = DRAIN_S, *, patient: Callable[[], bool] = lambda: False
    ) -> None:
        """Stop taking records, finish those in flight, wait for acks, commit, leave, close.

        The role first releases the work that other workers can take over: all later steps wait for
        the broker, which may be unavailable. Work in flight has `drain_s`, and longer while
        `patient()`.
        """
        self.source.pause(self.partitions)
        until = self.clock() + drain_s
        self.role.leave(patient=(waits := patient()))
        while self.role.in_flight() and (self.clock() < until or waits):
            self.source.poll(self.role.poll_s)
            self.role.leave(patient=(waits := patient()))
            self.role.tick()
            self._count_acks()
        faulthandler.dump_traceback_later(LEAVE_S, exit=True)
        try:
            self._flush(max(1.0, until - self.clock()))
            self.source.close()
        finally:
            faulthandler.cancel_dump_traceback_later()
        self.role.close()

    def _push(self) -> None:
        for publisher in self.publishers:
            publisher.push()

    def _count_acks(self) -> None:
        for publisher in self.publishers:
            publisher.poll()

    def _flush(self, timeout_s: float) -> None:
        for publisher in self.publishers:
            publisher.flush(timeout_s)

    def _waiting(self) -> int:
        return sum(publisher.waiting() for publisher in self.publishers)

    def assigned(self, held: Held) -> int:
        held = self._without_what_is_lost(held)
        start = held.committed if held.committed is not None else held.log_start
        progress = PartitionProgress(held.topic, held.partition, start, start, held.log_end)
        progress.topic_id = held.topic_id
        metadata, mark = split_metadata(held.metadata)
        start = self.role.assigned(replace(held, metadata=metadata), progress)
        progress.suspicion = read_suspicion(mark, self.clock())
        if start < held.log_start and self.accept_truncation:
            start = progress.next_offset = progress.floor = held.log_start
        if start < held.log_start:
            msg = (
                f"{held.topic} {held.partition} begins at {held.log_start}, but offset {start} is "
                "needed; retention has passed it. To continue from what is left, restart with "
                "--accept-truncation"
            )
            raise JournalGone(msg)
        progress.suspicion.begin_at(start, progress.next_offset)
        progress.suspicion.note_commit(progress.next_offset, progress.end_at_assign)
        self.partitions[held.topic, held.partition] = progress
        self.dispatcher.refresh_skipped()
        log.info("partition_assigned", topic=held.topic, partition=held.partition, offset=start)
        return start

    def _without_what_is_lost(self, held: Held) -> Held:
        """Return the partition with the position to continue from, if records of its commit are
        lost.

        Raises JournalGone if the loss was not accepted.
        """
        lost = lost_tail(held)
        if lost is None:
            return held
        if not self.accept_truncation:
            msg = f"{lost}. To continue from there, restart with --accept-truncation"
            raise JournalGone(msg)
        log.warning("loss_accepted", group=self.dead_letters.group, lost=str(lost))
        return replace(held, committed=lost.goes_on, metadata="", cut=None)

    def revoked(self, partitions: Sequence[TopicPartition]) -> None:
        self._flush(REVOKE_S)
        for tp in partitions:
            if tp in self.partitions:
                self.partitions[tp].handed = -1  # unfinished records are released, and kill nothing
        self.commits.last(self.partitions[tp] for tp in partitions if tp in self.partitions)
        self.lost(partitions)

    def lost(self, partitions: Sequence[TopicPartition]) -> None:
        for tp in partitions:
            progress = self.partitions.pop(tp, None)
            if progress is not None:
                self.role.dropped(progress)
                log.info("partition_dropped", topic=tp[0], partition=tp[1])

    def _note_ends(self) -> None:
        """Report the end of a partition when everything before it was
        handed over, not only read."""
        for topic, partition, offset in self.source.ended():
            if (topic, partition) in self.partitions:
                self.partitions[topic, partition].ended = offset
        for progress in self.partitions.values():
            if progress.ended is not None and not progress.held:
                progress.end, progress.ended = progress.ended, None
                self.role.at_end(progress)

    def _pause_and_resume(self) -> None:
        congested = self._waiting() > CONGESTED_RECORDS
        for tp, progress in self.partitions.items():
            behind = bool(progress.held) and (progress.away or len(progress.held) >= POLL_RECORDS)
            full = congested or behind or self.role.waits(progress) or self.role.full(progress)
            if full != progress.paused:
                progress.paused = full
                (self.source.pause if full else self.source.resume)([tp])
