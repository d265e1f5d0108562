"""The agents group: starts requests, folds journals, carries out the effects of the folds.

A request becomes one RolloutStarted (or RolloutRefused) in the journal partition of the same
number; the owner of that partition runs the rollout. All effects of the fold are outputs of the
event that caused them, so the journal's commit waits until all of them are acked.
"""

import random
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

from rollcall.consumers.agents.control_listener import ControlListener
from rollcall.consumers.agents.delayed_commands import DelayedCommands, JournalContext
from rollcall.consumers.agents.effects import Program
from rollcall.consumers.agents.fold.context import FoldContext
from rollcall.consumers.agents.fold.journal import Journal
from rollcall.consumers.agents.lookback import WrittenTrajectories
from rollcall.consumers.agents.outbox import Outbox
from rollcall.consumers.agents.owned_journal import (
    CatchingUp,
    OwnedJournal,
    Phase,
    Refolding,
    Replaying,
)
from rollcall.consumers.agents.programs import program_of
from rollcall.consumers.agents.quotas.user_quotas import UserQuotas
from rollcall.consumers.agents.request_starts import RequestStarts
from rollcall.consumers.agents.watermark import Watermark, read_watermark
from rollcall.consumers.log.protocols import Held, Log, Record
from rollcall.consumers.loop.clock import Clock, LogClock, steady_wall
from rollcall.consumers.loop.dead_letters import DeadLetters
from rollcall.consumers.loop.partition_progress import PartitionProgress
from rollcall.consumers.loop.quota_table import UNLIMITED
from rollcall.consumers.loop.role import log_invalid_metadata
from rollcall.consumers.loop.time_guard import PoisonGuard, TimeGuard
from rollcall.schemas.codec import Codec
from rollcall.schemas.errors import (
    FailureCode,
    KilledWorkers,
    ObjectLost,
    TopicRecreated,
    WireError,
)
from rollcall.schemas.messages import (
    CallFailed,
    EnvironmentStepped,
    Event,
    ModelAnswered,
    Quota,
    RolloutRequest,
)
from rollcall.schemas.topics import Topics

DUE_EVERY_S = 0.5
CONTROL_EVERY_S = 0.2
LOOK_BACK_S = 0.1
"""Seconds of one turn for reading other topics back."""
BESIDE = ("2;", "1;")
"""The prefix of the journal topic's id in the commit metadata of requests: the present
one and the former one. Readers that know only the former take all behind it for the
id, also a mark of deaths."""
CONTROL_OWNER = 0
"""The owner of this requests partition buries the unreadable records of topics
that every worker reads."""


@dataclass(frozen=True, slots=True)
class Capacity:
    """The load that one worker takes on; 0 is no limit."""

    max_live: int = 4000
    quota: Quota = UNLIMITED
    """The quota of users without one of their own."""
    max_held: int = 40_000
    """The most rollouts that quotas may hold back; they take memory, but do
    not count in `max_live`."""


class AgentsRole:
    """The role of the agents group; starts nothing before it has read `control` to its end."""

    poll_s = 0.02

    def __init__(
        self,
        log_: Log,
        codec: Codec,
        topics: Topics,
        outbox: Outbox,
        dead_letters: DeadLetters,
        *,
        capacity: Capacity | None = None,
        guard: TimeGuard | None = None,
        programs: Callable[[str], Program] = program_of,
        clock: Callable[[], float] = time.monotonic,
        wall: Clock | None = None,
        accept: bool = False,
    ) -> None:
        self.name = outbox.name
        self.log = log_
        self.codec = codec
        self.names = topics
        self.topics: Sequence[str] = (topics.requests, topics.events)
        self.journals: Sequence[str] = (topics.events,)
        self.outbox = outbox
        self.capacity = capacity or Capacity()
        self.clock = clock
        self.wall = wall or steady_wall()
        self.accept = accept
        self.counts: Counter[str] = Counter()
        poison_guard = PoisonGuard(guard or nullcontext())
        self.world = FoldContext(programs, random.Random, poison_guard)
        self.listener = ControlListener(log_, codec, topics, dead_letters, clock, self.wall)
        self.control = self.listener.state
        self.owned: dict[int, OwnedJournal] = {}
        default, unreadable = self.capacity.quota, self.listener.note_bad
        paused = self.control.paused_runs
        self.quotas = quotas = UserQuotas(
            log_, codec, topics, default, unreadable, clock, self.wall, paused
        )
        self.context = JournalContext(
            outbox, quotas.rollouts, quotas.pacing, self.control, poison_guard, self.counts
        )
        self.requests = RequestStarts(
            log_, topics, outbox, programs, self.owned, dead_letters.skipped
        )
        self._again: set[int] = set()
        """Partitions whose requests are read again, because their journal has lost starts."""
        self._uncommitted: set[int] = set()
        """Partitions without a commit of requests when they were taken over."""
        self._ids = {topic: log_.topic_id(topic) for topic in self.topics}
        self._control_due = self._due = 0.0
        self._live = self._held = 0
        """Totals over all partitions as of the last tick, since each partition uses them."""
        self._folded_unheard: set[int] = set()
        """Journals that were read to their end before `control` was."""
        self.listener.listen()

    def expects(self, topic: str) -> type:
        return RolloutRequest if topic == self.names.requests else Event

    def assigned(self, held: Held, progress: PartitionProgress) -> int:
        self._ids[held.topic] = held.topic_id
        if held.topic == self.names.events:
            return self._own(held, progress)
        if held.metadata.startswith(BESIDE) and not self.accept:
            self._check_id(self.names.events, held.metadata[len(BESIDE[0]) :])
        if self.accept and self._has_lost_starts(held.partition):
            self._again.add(held.partition)
            progress.next_offset = progress.floor = held.log_start
        if held.committed is None:
            self._uncommitted.add(held.partition)
        self._check_requests(held.partition)
        start = 0 if self.accept else progress.next_offset
        self.requests.begin_partition(held, start, progress.next_offset)
        return progress.next_offset

    def _has_lost_starts(self, partition: int) -> bool:
        """Return True if a journal has lost its tail; the rest of it tells which starts remain."""
        commits = self.log.commits(self.names.group("agents"), self.names.events)
        return partition in commits and bool(self.log.cuts([commits[partition]]))

    def _own(self, held: Held, progress: PartitionProgress) -> int:
        """Take over a journal; return the offset from which it has to be read."""
        watermark = read_watermark(held.metadata)
        reset = held.committed is None or watermark is None
        if held.metadata and watermark is None:
            log_invalid_metadata(held)
        if watermark is None or reset:
            begin = Watermark(held.log_start)
            progress.next_offset = progress.floor = begin.low
        else:
            begin = watermark
            if self.accept and begin.low < held.log_start:
                begin = replace(begin, last=None)
        clock = LogClock(self.wall)
        until = held.log_end if reset else progress.next_offset
        owned = self.owned[held.partition] = OwnedJournal(
            self.context,
            Journal(held.partition, self.world, self.name, begin),
            progress,
            clock,
            DelayedCommands(self.context, held.partition, clock, begin.quota),
            sent_below=until,
            phase=self._first_phase(held, until, begin, reset=reset),
        )
        self._check_requests(held.partition)
        self.quotas.take_over()
        if begin.stragglers:
            progress.needs = owned.journal.needs
        return begin.low

    def _first_phase(self, held: Held, until: int, begin: Watermark, *, reset: bool) -> Phase:
        """Return the phase in which a journal is taken over."""
        complete = begin.low >= until
        if reset:
            topic, number = self.names.trajectories, held.partition
            back = None if complete else WrittenTrajectories(self.log, self.codec, topic, number)
            return Refolding(back)
        return CatchingUp() if complete else Replaying(held.metadata)

    def _check_requests(self, partition: int) -> None:
        """Raise TopicRecreated if a journal's requests are of an earlier incarnation of the topic.

        A commit in the new topic means that the recreation was accepted.
        """
        owned = self.owned.get(partition)
        if owned is not None and partition in self._uncommitted and not self.accept:
            self._check_id(self.names.requests, owned.journal.chain.requests)

    def _check_id(self, topic: str, known: str) -> None:
        if known and known != self._ids[topic]:
            raise TopicRecreated(_recreated(topic, self.names))

    def dropped(self, progress: PartitionProgress) -> None:
        if progress.topic == self.names.requests:
            self.requests.drop(progress.number)
            self._again.discard(progress.number)
            self._uncommitted.discard(progress.number)
        else:
            self.owned.pop(progress.number).release()
            self._folded_unheard.discard(progress.number)
            self.quotas.drop(progress.number)

    def at_end(self, progress: PartitionProgress) -> None:
        if progress.topic != self.names.events:
            return
        if self.control.known:
            self.owned[progress.number].catch_up()
        else:
            self._folded_unheard.add(progress.number)

    def commit_metadata(self, progress: PartitionProgress) -> str:
        if progress.topic == self.names.requests:
            return BESIDE[0] + self._ids[self.names.events]
        return self.owned[progress.number].commit_metadata(self._ids[self.names.requests])

    def waits(self, progress: PartitionProgress) -> bool:
        """Return True while data that a reset or a takeover needs first is still read back.

        Requests wait also while agents are paused. After a reset, or if the journal has lost
        starts, they wait until the fold tells which of them were started before.
        """
        if not self.control.known:
            return True
        owned = self.owned.get(progress.number)
        if progress.topic == self.names.events:
            return owned is not None and owned.unread_trajectories() is not None
        unfolded = owned is not None and (
            isinstance(owned.phase, Refolding)
            or (progress.number in self._again and not owned.caught_up)
        )
        unsaid = self.control.paused or not self.quotas.table.known
        return unsaid or unfolded or not self.requests.knows_window(progress.number)

    def full(self, progress: PartitionProgress) -> bool:
        """Return True to pause requests; the journal never is, as answers free capacity."""
        most = self.capacity.max_live
        if progress.topic == self.names.events or not most:
            return False
        # No partition may take all the capacity: its keys map to one partition of calls and steps.
        share = -(-most // max(1, len(self.requests.partitions)))
        here = self.live(progress.number) if progress.number in self.owned else 0
        if progress.paused:
            most, share = max(1, most * 7 // 8), max(1, share * 7 // 8)
        held = 0 < self.capacity.max_held <= self._held
        return held or here >= share or self._live >= most

    def live(self, partition: int) -> int:
        """Return the number of rollouts of a journal that run or are being started."""
        return self.owned[partition].count_running()

    def in_flight(self) -> int:
        return 0

    def leave(self, *, patient: bool) -> None:
        """Do nothing: no work is in flight."""

    def close(self) -> None:
        """Do nothing: no resource outlives the worker."""

    def handle(self, batch: Iterable[tuple[Record, Any]]) -> None:
        fresh = {number for number, owned in self.owned.items() if owned.caught_up}
        newest: dict[int, int] = {}
        for record, message in batch:
            if record.topic == self.names.events:
                self.owned[record.partition].apply_record(message, record)
                newest[record.partition] = record.timestamp_ms
            else:
                self.requests.handle(record, message)
            record.closed = True
        for partition in fresh & newest.keys():
            self.owned[partition].clock.saw(newest[partition])

    def unreadable(self, record: Record, error: WireError) -> None:
        """Write a refusal for an unreadable request; retry a command whose
        answer's object is lost."""
        if record.topic == self.names.requests:
            self.requests.refuse_unread(record, error)
        elif isinstance(error, ObjectLost) and isinstance(error.light, Event):
            self._fail_lost(error.light, record, error)

    def _fail_lost(self, event: Event, record: Record, error: ObjectLost) -> None:
        """Have a command retried whose answer is lost: its light record identifies it."""
        if isinstance(event.body, ModelAnswered | EnvironmentStepped):
            failed = CallFailed(FailureCode.OBJECT_LOST, str(error), True)
            again = replace(event, written_by=self.name, body=failed)
            self.context.outbox.write(again, record.partition, record)

    def fatal(self, record: Record, message: Any, error: KilledWorkers) -> bool:
        """Refuse a request that kills workers; an event counts, but its
        rollout's program is not run."""
        if record.topic == self.names.requests:
            self.requests.refuse_unread(record, error)
            return False
        owned = self.owned[record.partition]
        fresh = owned.caught_up
        owned.apply_record(message, record, poison=str(error))
        record.closed = True
        if fresh:
            owned.clock.saw(record.timestamp_ms)
        return True

    def tick(self) -> None:
        now = self.wall()
        self._look_back()
        self._let_begin()
        if now >= self._control_due or not self.control.known:
            self._control_due = now + CONTROL_EVERY_S
            self._listen()
        if now >= self._due:
            self._due = now + DUE_EVERY_S
            self.outbox.retry()
            self._deadlines()
        self._live, self._held = sum(map(self.live, self.owned)), self.quotas.held()

    def _let_begin(self) -> None:
        """Send commands that quotas and rates held back and no longer do."""
        for rollout in self.quotas.ready():
            self.owned[rollout.partition].late.send_again(rollout, fresh=True)
        for rollout, call in self.quotas.due():
            self.owned[rollout.partition].late.send_paced(rollout, call)

    def _deadlines(self) -> None:
        for owned in self.owned.values():
            owned.end_overdue()

    def _look_back(self) -> None:
        """Read further in the data that a reset needs, one partition at a time."""
        until = self.clock() + LOOK_BACK_S
        self.requests.look_back(lambda: self.clock() >= until)
        for owned in self.owned.values():
            written = owned.unread_trajectories()
            if written is None:
                continue
            while written.read() and self.clock() < until:
                pass
            if not written.known:
                return

    def _listen(self) -> None:
        ids, groups = self.listener.listen()
        if ids or groups:
            for owned in self.owned.values():
                owned.cancel(ids, groups)
        self.quotas.follow()
        if self.control.known and self._folded_unheard:
            for number in self._folded_unheard:
                self.owned[number].catch_up()
            self._folded_unheard.clear()
        if CONTROL_OWNER in self.requests.partitions:
            self.listener.tend(self.outbox.commands, self.names.group("agents"))


def _recreated(topic: str, names: Topics) -> str:
    if topic == names.requests:
        return (
            f"{topic} was deleted and made anew, but {names.events} was not: requests that were "
            "not started are lost. To continue with the new topic, restart with --accept-truncation"
        )
    return (
        f"{topic} was deleted and made anew: the rollouts that were open are lost, and their "
        "requests are not read again. To continue without them, restart with --accept-truncation"
    )
