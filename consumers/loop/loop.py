"""The worker loop: poll, decode, handle, send, commit.

The law it keeps: a record counts as finished when its handler has closed it and all its outputs
are acked, and the committed offset is the first that is not finished. A crash anywhere brings the
unfinished ones back; their answers are written once more, and the fold ignores them. One that
kills whoever takes it is found by the marks that commits carry (`suspects`), and put aside.

One thread owns source, publisher and role. Whoever works elsewhere hands results back in batches.
"""

import base64
import faulthandler
import gc
import time
import zlib
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import structlog

from consumers.log.protocols import Commit, Held, Log, Record, TopicPartition
from consumers.loop.dead_letters import DeadLetters
from consumers.loop.suspects import (
    ALONE,
    DEATHS,
    FEW,
    FEW_RECORDS,
    FREE,
    MARK_BYTES,
    Suspicion,
    parted,
    suspicion_of,
)
from producers.publisher import Publisher
from schemas.codec import Codec
from schemas.errors import (
    JournalGone,
    KilledWorkers,
    ObjectLost,
    Unavailable,
    UnknownSchema,
    WireError,
    WrongSchema,
)
from schemas.topics import Topics

COMMIT_EVERY_S = 1.0
COMMIT_EVERY_RECORDS = 5000
"""At full load every 500 records would be forty commits a second."""
DRAIN_S = 20.0
ARM_EVERY_S = 5.0
REVOKE_S = 5.0
METADATA_BYTES = 4095 - MARK_BYTES
"""What a role's word may take up of the broker's limit."""
SPAN = 2000
"""Records of one partition in hand at once; more would make a restart repeat all behind one."""
RETRY_S = 1.0
TURN_S = 0.5
"""The time in which a turn hands records over; whatever one costs, the loop comes round."""
MOST = 500
"""Records asked for in one poll."""
COLLECT = (500_000, 50, 1000)
"""Thresholds of Python's collector; with Python's own, thousands of live rollouts, none of them
garbage, are walked through so often that it takes a sixth of a worker's time."""

log = structlog.get_logger()
NOTHING = (-1, "")


@dataclass(slots=True)
class Progress:
    """One assigned partition: what was delivered and how much of it is finished."""

    topic: str
    number: int
    next_offset: int
    """The first offset that is not finished; what a commit says."""
    floor: int
    """What lies below was finished before the assignment: read for its history, never committed."""
    end_at_assign: int
    taken: deque[Record] = field(default_factory=deque)
    held: deque[Record] = field(default_factory=deque)
    """Delivered and not yet handed over: the turn was over, or the registry is away."""
    away: bool = False
    """Whether the first held record waits for the registry."""
    ended: int | None = None
    """Where the partition was said to end, while records before that are held."""
    end: int = 0
    """Where the partition last came to its end; behind the last record there may be holes."""
    skip: frozenset[int] = frozenset()
    """Offsets above the commit that were finished before a restart."""
    needs: Callable[[int, bytes | None], bool] | None = None
    """Told offset and key, whether a record below the floor is read at all."""
    stuck: int = -1
    """The offset that was last said to hold the partition."""
    committed: tuple[int, str] = NOTHING
    paused: bool = False
    handed: int = -1
    """The last offset that was handed over, of those that a commit has to wait for."""
    suspicion: Suspicion = field(default_factory=Suspicion)

    def advance(self) -> int:
        """Move past everything finished, never past what is held; return how many records."""
        moved = 0
        while self.taken and self.taken[0].finished():
            self.next_offset = self.taken.popleft().offset + 1
            moved += 1
        if not self.taken and not self.held and self.end > self.next_offset:
            self.next_offset = self.end
        self.suspicion.moved(self.next_offset)
        return moved

    def suspects_next(self) -> bool:
        """Whether the next record may only be handed over alone."""
        return self.suspicion.level == ALONE and self.held[0].offset >= self.floor

    def mark(self) -> str:
        """What a commit says of deaths, behind the role's word."""
        return self.suspicion.mark(self.next_offset, busy=self.handed >= self.next_offset)


class Role(Protocol):
    """What a group does; the loop knows nothing else about it."""

    name: str
    topics: Sequence[str]
    journals: Sequence[str]
    """Topics of which all readers must come to the same: what one cannot read, it waits for."""
    poll_s: float
    """How long a poll may wait while work is in flight."""

    def expects(self, topic: str) -> type:
        """The message type of a topic's values."""
        ...

    def assigned(self, held: Held, progress: Progress) -> int:
        """Return the offset to start from."""
        ...

    def dropped(self, progress: Progress) -> None:
        """The partition is gone; forget its work. Nothing of it will be committed any more."""
        ...

    def at_end(self, progress: Progress) -> None:
        """All there was up to `progress.end` has been handed over."""
        ...

    def take(self, batch: Iterable[tuple[Record, Any]]) -> None:
        """Handle decoded records; each is closed now or later.

        They can be gone through once, and end when the turn's time is over.
        """
        ...

    def unreadable(self, record: Record, error: WireError) -> None:
        """Close a record that nobody can read."""
        ...

    def fatal(self, record: Record, message: Any, error: KilledWorkers) -> None:
        """Close a record that kills whoever takes it: answer or bury it, and do nothing with it."""
        ...

    def tick(self) -> None:
        """Do what is due, and collect what was finished elsewhere."""
        ...

    def metadata(self, progress: Progress) -> str:
        """The word that goes with a commit of `progress.next_offset`."""
        ...

    def waits(self, progress: Progress) -> bool:
        """Whether none of the partition's records may be handed over yet, only kept in order."""
        ...

    def full(self, progress: Progress) -> bool:
        """Whether the partition should be paused."""
        ...

    def in_flight(self) -> int:
        """Pieces of work begun and not ended; the loop polls briefly while there are any."""
        ...


class Loop:
    """Drives one role on one log."""

    def __init__(
        self,
        log_: Log,
        role: Role,
        codec: Codec,
        publishers: Sequence[Publisher],
        topics: Topics,
        group: str,
        *,
        clock: Callable[[], float] = time.monotonic,
        accept_truncation: bool = False,
    ) -> None:
        self.role = role
        self.codec = codec
        self.publishers = publishers
        self.clock = clock
        self.accept_truncation = accept_truncation
        self.partitions: dict[TopicPartition, Progress] = {}
        self.counts: Counter[str] = Counter()
        self.letters = DeadLetters(publishers[0], topics, group, clock, log_)
        # All of them now, while nobody waits; at an assignment only what has come since.
        self.letters.passed.refresh()
        self._letters_read = False
        self._commit_due = clock() + COMMIT_EVERY_S
        self._retry_due = 0.0
        self._since_commit = 0
        self._refused = 0
        self._most = MOST
        self._cut: TopicPartition | None = None
        self._accused: Progress | None = None
        self.source = log_.source(group, role.topics, self)

    # One turn

    def turn(self, timeout_s: float = 0.1) -> int:
        """Take one batch through the role; return how many records moved.

        1. poll  2. decode and handle  3. what is due  4. count acks  5. commit what is finished
        """
        waited_s = timeout_s if self._cut is None else 0.0
        records = self.source.poll(waited_s, max(1, self._most - self._backlog()))
        for record in records:
            self._receive(record)
        handed = self._hand_over()
        self._note_ends()
        self.role.tick()
        self._acquit()
        self._count_acks()
        self._since_commit += handed
        now = self.clock()
        if now >= self._commit_due or self._since_commit >= COMMIT_EVERY_RECORDS:
            self._commit_finished(now)
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
        gc.set_threshold(*COLLECT)
        armed = -ARM_EVERY_S
        while not stopping():
            if self.clock() - armed > ARM_EVERY_S:
                armed = self.clock()
                faulthandler.dump_traceback_later(wedged_s + ARM_EVERY_S, exit=True)
            self.turn(self.wait_s())
        faulthandler.cancel_dump_traceback_later()
        self.stop(patient=patient)

    def wait_s(self) -> float:
        """How long the next poll may wait: briefly while work is in flight elsewhere."""
        if self.role.in_flight():
            return self.role.poll_s
        return 0.02 if self._waiting() else 0.1

    def stop(
        self, drain_s: float = DRAIN_S, *, patient: Callable[[], bool] = lambda: False
    ) -> None:
        """Take nothing more, finish what was taken, wait for acks, commit, close.

        Work in flight has `drain_s`, and longer while whoever waits for it is patient.
        """
        self.source.pause(self.partitions)
        until = self.clock() + drain_s
        while self.role.in_flight() and (self.clock() < until or patient()):
            self.source.poll(self.role.poll_s)
            self.role.tick()
            self._count_acks()
        self._flush(max(1.0, until - self.clock()))
        self.source.close()

    def _count_acks(self) -> None:
        for publisher in self.publishers:
            publisher.poll()

    def _flush(self, timeout_s: float) -> None:
        for publisher in self.publishers:
            publisher.flush(timeout_s)

    def _waiting(self) -> int:
        return sum(publisher.waiting() for publisher in self.publishers)

    # Records

    def _receive(self, record: Record) -> None:
        """Put a record behind those of its partition that wait to be handed over."""
        progress = self.partitions.get((record.topic, record.partition))
        if progress is None:
            return
        if record.offset >= progress.floor:
            progress.taken.append(record)
        elif progress.needs and not progress.needs(record.offset, record.key):
            return
        if record.offset in progress.skip:
            record.closed = True
            self.counts["finished_before"] += 1
            return
        progress.held.append(record)

    def _backlog(self) -> int:
        held = [progress for progress in self.partitions.values() if progress.held]
        return sum(len(progress.held) for progress in held if not self.role.waits(progress))

    def _hand_over(self) -> int:
        """Hand the role what is held, while the turn's time lasts; return how many records left.

        Where records cost so much that the time is over before all are handed, fewer are polled.
        """
        waiting = self._due()
        before = sum(len(progress.held) for progress in waiting)
        self._cut = None
        if waiting:
            self._hand(waiting)
        handed = before - sum(len(progress.held) for progress in waiting)
        self._most = min(MOST, 2 * self._most) if self._cut is None else max(1, handed)
        return handed

    def _due(self) -> list[Progress]:
        """The partitions with records to hand over, ending with the one that was cut off."""
        retry = self.clock() >= self._retry_due
        order = list(self.partitions.values())
        if self._cut in self.partitions:
            first = list(self.partitions).index(self._cut) + 1
            order = order[first:] + order[:first]
        return [
            progress
            for progress in order
            if progress.held and (retry or not progress.away) and not self.role.waits(progress)
        ]

    def _hand(self, waiting: list[Progress]) -> None:
        """Hand over what may be taken together, or one suspect alone when nothing is in hand."""
        suspect = next((progress for progress in waiting if progress.suspects_next()), None)
        if suspect is None:
            self._note(waiting)
            self.role.take(self._handing(waiting, self.clock() + TURN_S))
        elif self.role.in_flight():
            suspect.suspicion.lasts(self.clock())  # others wait for this one
        elif self._accuse(suspect):
            self.role.take(self._handing([suspect], self.clock() + TURN_S))
            self._cut = suspect.topic, suspect.number

    def _handing(self, waiting: list[Progress], until: float) -> Iterator[tuple[Record, Any]]:
        """Record by record: what came before one has been handled when it is decoded."""
        for progress in waiting:
            room = self._room(progress)
            while progress.held and room > 0:
                if self.clock() >= until:
                    self._cut = progress.topic, progress.number
                    return
                record = progress.held[0]
                message: Any
                try:
                    message = self._decode(progress, record)
                except Unavailable as error:
                    self._wait_for_registry(progress, error)
                    break
                except WireError as error:
                    if record.topic in self.role.journals and another_may_read(error):
                        self._wait_for_schema(progress, record, error)
                        break
                    self._passed(progress)
                    if record.offset >= progress.floor:  # else buried when it was read first
                        self.role.unreadable(record, error)
                else:
                    self._passed(progress)
                    if progress.suspicion.condemned(record.offset):
                        self.role.fatal(record, message, self._verdict(record))
                    else:
                        self.letters.read()
                        yield record, message
                room -= 1
                if progress.held and not room:
                    self._cut = progress.topic, progress.number
                    self._commit_due = self.clock()  # so that a death is known to be near it

    def _room(self, progress: Progress) -> int:
        """How many of the held records of a partition may be handed over now."""
        if progress.away and self.clock() < self._retry_due:
            return 0  # it was asked for another's sake a moment ago
        if progress.suspicion.level < FEW:
            return len(progress.held)
        below = sum(record.offset < progress.floor for record in progress.held)
        most = 1 if progress.suspicion.level == ALONE else FEW_RECORDS - self.role.in_flight()
        return below or most

    def _decode(self, progress: Progress, record: Record) -> Any:
        """What a record says; raises WireError, also where it is passed over, and Unavailable."""
        if not self._letters_read:
            self.letters.passed.refresh()
            self._letters_read = True
        self.letters.passed.check(record)
        if progress.suspicion.deaths.get(record.offset, 0) > DEATHS:
            raise self._verdict(record)  # even to answer it instead was too much
        return self.codec.decode(record.value, self.role.expects(record.topic))

    def _passed(self, progress: Progress) -> None:
        record = progress.held.popleft()
        progress.away = False
        if record.offset >= progress.floor:
            progress.handed = record.offset
            if progress.suspicion.level > FREE:
                progress.suspicion.went_well(self.clock())

    def _wait_for_registry(self, progress: Progress, error: Unavailable) -> None:
        progress.away = True
        self._retry_due = self.clock() + RETRY_S
        log.warning("registry_away", topic=progress.topic, error=str(error))

    def _wait_for_schema(self, progress: Progress, record: Record, error: WireError) -> None:
        """Hold the partition: a reader that does know the schema would tell another history."""
        progress.away = True
        self._retry_due = self.clock() + RETRY_S
        self._letters_read = False  # where somebody decides to skip it, that is written there
        if progress.stuck != record.offset:
            progress.stuck = record.offset
            place = f"{record.partition}@{record.offset}"
            log.warning(
                "journal_held",
                topic=record.topic,
                partition=record.partition,
                offset=record.offset,
                error=str(error),
                remedy="bring schema or object back, upgrade this worker, or, with all workers of "
                "the group stopped, `rollcall dlq skip "
                f"{self.letters.group} {record.topic} {place}`",
            )

    def bury(self, record: Record, error: WireError) -> None:
        """The usual fate of an unreadable record."""
        self.letters.bury(record, error)
        record.closed = True

    # Records that kill

    def _note(self, waiting: list[Progress]) -> None:
        """Let the commits say that records are in hand, before the first of a partition is."""
        fresh = [p for p in waiting if p.handed < p.floor <= p.held[-1].offset]
        for progress in fresh:
            progress.handed = next(r.offset for r in progress.held if r.offset >= progress.floor)
        if self._accused is not None:
            self._accused.suspicion.alone = None  # also if it is not through: it has had its time
        if fresh or self._accused is not None:
            self._accused = None
            self._commit_now()

    def _accuse(self, progress: Progress) -> bool:
        """Let the commits say that the next record is in hand alone; False if they would not."""
        if self._accused is not None:
            self._accused.suspicion.alone = None
        self._accused = progress
        progress.suspicion.alone = progress.handed = progress.held[0].offset
        return self._commit_now()

    def _acquit(self) -> None:
        """Who has nothing more in hand is not in danger; the next commit says so."""
        accused = self._accused
        if accused is None or accused.suspicion.alone is None or self.role.in_flight():
            return
        accused.suspicion.alone = None
        self._commit_due = self.clock()

    def _verdict(self, record: Record) -> KilledWorkers:
        place = f"{record.topic} {record.partition}@{record.offset}"
        self.counts["condemned"] += 1
        log.error("record_condemned", place=place, group=self.letters.group)
        msg = (
            f"{DEATHS} workers of {self.letters.group} died while they had nothing in hand but "
            f"{place}; see their last words (a crash, memory, the watchdog), mend what it asks for "
            "and write it again"
        )
        return KilledWorkers(msg)

    # Partitions

    def assigned(self, held: Held) -> int:
        start = held.committed if held.committed is not None else held.log_start
        progress = Progress(held.topic, held.partition, start, start, held.log_end)
        word, mark = parted(held.metadata)
        start = self.role.assigned(replace(held, metadata=word), progress)
        progress.suspicion = suspicion_of(mark, self.clock())
        if start < held.log_start and self.accept_truncation:
            start = progress.next_offset = progress.floor = held.log_start
        if start < held.log_start:
            msg = (
                f"{held.topic} {held.partition} begins at {held.log_start}, but offset {start} is "
                "needed; retention has passed it. What is lost is lost: restart with "
                "--accept-truncation to go on from what is still there"
            )
            raise JournalGone(msg)
        progress.suspicion.began(start, progress.next_offset)
        self.partitions[held.topic, held.partition] = progress
        self._letters_read = False
        log.info("partition_assigned", topic=held.topic, partition=held.partition, offset=start)
        return start

    def revoked(self, partitions: Sequence[TopicPartition]) -> None:
        self._flush(REVOKE_S)
        for tp in partitions:
            if tp in self.partitions:
                self.partitions[tp].handed = -1  # what is in hand is let go, and kills nobody
        commits = self._commits([self.partitions[tp] for tp in partitions if tp in self.partitions])
        if commits:
            self.source.commit_now(commits)
        self.lost(partitions)

    def lost(self, partitions: Sequence[TopicPartition]) -> None:
        for tp in partitions:
            progress = self.partitions.pop(tp, None)
            if progress is not None:
                self.role.dropped(progress)
                log.info("partition_dropped", topic=tp[0], partition=tp[1])

    def _note_ends(self) -> None:
        """A partition is at its end when everything before that was handed over, not only read."""
        for topic, partition, offset in self.source.ended():
            if (topic, partition) in self.partitions:
                self.partitions[topic, partition].ended = offset
        for progress in self.partitions.values():
            if progress.ended is not None and not progress.held:
                progress.end, progress.ended = progress.ended, None
                self.role.at_end(progress)

    # Commits

    def _commit_finished(self, now: float) -> None:
        self._commit_due = now + COMMIT_EVERY_S
        self._since_commit = 0
        if self.letters.brewing():
            return
        if self.source.refused != self._refused:
            self._refused = self.source.refused
            for progress in self.partitions.values():
                progress.committed = NOTHING
        commits = self._commits(self.partitions.values())
        if commits:
            self.source.commit(commits)

    def _commit_now(self) -> bool:
        """Commit and wait; False where it was refused."""
        if self.letters.brewing():
            return True
        refused = self.source.refused
        commits = self._commits(self.partitions.values())
        if commits:
            self.source.commit_now(commits)
        if self.source.refused == refused:
            return True
        for progress in self.partitions.values():
            progress.committed = NOTHING
        return False

    def _commits(self, partitions: Any) -> list[Commit]:
        commits = []
        for progress in partitions:
            progress.advance()
            word = progress.next_offset, self.role.metadata(progress) + progress.mark()
            if word != progress.committed:
                progress.committed = word
                commits.append(Commit(progress.topic, progress.number, *word))
        return commits

    def _pause_and_resume(self) -> None:
        congested = self._waiting() > 25_000
        for tp, progress in self.partitions.items():
            behind = bool(progress.held) and (progress.away or len(progress.held) >= MOST)
            full = congested or behind or self.role.waits(progress) or self.role.full(progress)
            if full != progress.paused:
                progress.paused = full
                (self.source.pause if full else self.source.resume)([tp])


def another_may_read(error: WireError) -> bool:
    """Whether the bytes may be good: only their schema, or object, is one not to be had here."""
    return isinstance(error, UnknownSchema | ObjectLost) and not isinstance(error, WrongSchema)


class WorkRole:
    """What roles on work topics share: order does not matter, finished offsets are remembered."""

    name = ""
    topics: Sequence[str] = ()
    journals: Sequence[str] = ()
    poll_s = 0.0
    loop: Loop

    def assigned(self, held: Held, progress: Progress) -> int:
        progress.skip = finished_above(held.metadata, progress.next_offset)
        return progress.next_offset

    def dropped(self, progress: Progress) -> None:
        """Nothing is kept per partition."""

    def at_end(self, progress: Progress) -> None:
        """Nothing waits for that."""

    def unreadable(self, record: Record, error: WireError) -> None:
        self.loop.bury(record, error)

    def fatal(self, record: Record, message: Any, error: KilledWorkers) -> None:
        del message
        self.loop.bury(record, error)

    def tick(self) -> None:
        """Nothing is due."""

    def metadata(self, progress: Progress) -> str:
        return above_commit(progress)

    def waits(self, progress: Progress) -> bool:
        del progress
        return False

    def full(self, progress: Progress) -> bool:
        if len(progress.taken) > SPAN // 2:
            progress.advance()  # what is finished is not in hand, though no commit has said so yet
        return len(progress.taken) > (SPAN // 2 if progress.paused else SPAN)

    def in_flight(self) -> int:
        return 0


def above_commit(progress: Progress) -> str:
    """The finished offsets above the commit as `1;<base64 of a compressed bitmap>`.

    Bit n stands for offset commit + n. Cut where it would not fit the broker's limit: what is left
    out is done once more after a restart.
    """
    finished = [r.offset - progress.next_offset for r in progress.taken if r.finished()]
    while finished:
        bits = bytearray(finished[-1] // 8 + 1)
        for n in finished:
            bits[n // 8] |= 1 << n % 8
        word = "1;" + base64.b64encode(zlib.compress(bytes(bits), 9)).decode()
        if len(word) <= METADATA_BYTES:
            return word
        finished = finished[: len(finished) * 3 // 4]
    return "1;"


def finished_above(metadata: str, commit: int) -> frozenset[int]:
    """Read `above_commit`; metadata that others wrote counts as none."""
    if not metadata.startswith("1;") or len(metadata) == len("1;"):
        return frozenset()
    try:
        bits = zlib.decompress(base64.b64decode(metadata[2:], validate=True))
    except (ValueError, zlib.error):
        return frozenset()
    return frozenset(commit + n for n in range(len(bits) * 8) if bits[n // 8] >> n % 8 & 1)
