"""The watch of the journal during faults, and the time to progress after each.

*Time to progress*: from the fault until every partition of its victim has a new entry by a worker
of the victim's group; for broker and registry, until there is any entry; for the trainer, until
there is a train step; for its model server, until that answers. Times are the broker's append
times. Entries of the first moment do not count, as they were already on the wire. For agents, only
ends, failures and new attempts count, since any member of the group may write a start.
"""

import threading
import time
from collections import Counter, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import structlog

from rollcall.compose.chaos.faults import Fault
from rollcall.compose.cluster import Cluster
from rollcall.consumers.log.protocols import Record, TopicPartition
from rollcall.schemas.errors import JournalGone, RollcallError, Unavailable
from rollcall.schemas.messages import (
    Event,
    RolloutRefused,
    RolloutStarted,
    ScoredTrajectory,
    Trajectory,
)

ON_THE_WIRE_MS = 100
POLL_S = 0.1
STARTS = (RolloutStarted, RolloutRefused)

log = structlog.get_logger()


@dataclass
class FaultRecovery:
    """One fault, and the progress that its group has still to make."""

    fault: Fault
    began_ms: int
    group: str | None
    """The group; None: any."""
    waiting: set[int]
    took_s: float | None = None
    _last_ms: int = 0

    def begin_anew(self, at_ms: int) -> None:
        """Count from now on: the fault took a while to prepare, and took effect only now."""
        self.began_ms, self.took_s, self._last_ms = at_ms, None, 0

    def seen(self, group: str, partition: int, at_ms: int) -> None:
        """Record a written entry."""
        if self.took_s is not None or at_ms < self.began_ms + ON_THE_WIRE_MS:
            return
        if self.group not in (None, group):
            return
        if self.waiting and partition not in self.waiting:
            return
        self.waiting.discard(partition)
        self._last_ms = max(self._last_ms, at_ms)
        if not self.waiting:
            self.took_s = (self._last_ms - self.began_ms) / 1000
            log.info("progress_resumed", victim=self.fault.victim, took_s=self.took_s)


@dataclass
class Watch:
    """A watch that reads the journal and the scored trajectories in a separate thread."""

    cluster: Cluster
    asked: set[str] = field(default_factory=set)
    """The ids in the requests topic."""
    scored: set[str] = field(default_factory=set)
    steps: int = 0
    progress: list[FaultRecovery] = field(default_factory=list)
    failure: Exception | None = None
    last_requests: dict[int, Record] = field(default_factory=dict)
    """The newest request of each partition."""

    def __post_init__(self) -> None:
        topics = self.cluster.topics
        self._topics = [topics.requests, topics.events, topics.scored, topics.train_steps]
        self._reader = self.cluster.log.reader(self._topics)
        self._next: dict[TopicPartition, int] = {}
        self._cuts: deque[tuple[TopicPartition, int]] = deque()
        self._scored_by_run: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)
        self._thread.start()

    def expect(
        self, fault: Fault, began_ms: int, group: str | None, partitions: Iterable[int]
    ) -> None:
        """Record the beginning of a fault, to note when its group works again."""
        with self._lock:
            self.progress.append(FaultRecovery(fault, began_ms, group, set(partitions)))

    def expect_cut(self, fault: Fault, place: TopicPartition, first: int) -> None:
        """Record that a partition was cut off at an offset; its broker restarts after this call.

        Reading continues from that offset: when the partition's end is queried, new unread records
        may already be there.
        """
        with self._lock:
            for each in self.progress:
                if each.fault is fault:
                    each.begin_anew(int(time.time() * 1000))
        self._cuts.append((place, first))

    def waiting(self) -> list[FaultRecovery]:
        """Return the faults after which there was no progress yet."""
        with self._lock:
            return [each for each in self.progress if each.took_s is None]

    def scored_of(self, run_id: str) -> int:
        """Return the number of scored rollouts of a run."""
        return self._scored_by_run[run_id]

    def all_scored(self, ends: Mapping[TopicPartition, int]) -> bool:
        """Return True if every request below these offsets has been scored."""
        read = all(self._next.get(tp, 0) >= end for tp, end in ends.items())
        return read and self.asked <= self.scored

    def close(self) -> None:
        self._stop.set()
        self._thread.join(30)
        self._reader.close()

    def _run(self) -> None:
        held: list[Record] = []
        while not self._stop.is_set():
            try:
                while held:
                    self._take(held[0])
                    held.pop(0)
                if self._cuts:
                    self._begin_again()
                held += self._reader.poll(POLL_S)
            except Unavailable as error:
                log.warning("watch_retried_later", error=str(error))
                self._stop.wait(1.0)
            except RollcallError as error:
                # The reader may have reached a cut before this thread has checked for one.
                if not (self._cuts and isinstance(error, JournalGone)):
                    self.failure = error
                    return

    def _begin_again(self) -> None:
        """Continue with a new reader, from the offsets at which partitions were cut off.

        Raises Unavailable while the broker is down.
        """
        cuts = list(self._cuts)
        for place, first in cuts:
            self._next[place] = min(self._next.get(place, 0), first)
        reader = self.cluster.log.reader(self._topics, self._next)
        self._reader.close()
        self._reader = reader
        for _ in cuts:
            self._cuts.popleft()

    def _take(self, record: Record) -> None:
        topics, codec = self.cluster.topics, self.cluster.codec
        self._next[record.topic, record.partition] = record.offset + 1
        if record.topic == topics.requests:
            self.asked.add((record.key or b"").decode())
            self.last_requests[record.partition] = record
        elif record.topic == topics.train_steps:
            self.steps += 1
            self._seen("training", record)
        elif record.topic == topics.scored:
            scored = codec.decode(record.value, ScoredTrajectory)
            self._note_scored(scored.trajectory)
            self._seen("rewards", record, scored.source_partition)
        else:
            event = codec.decode(record.value, Event)
            if not isinstance(event.body, STARTS):
                self._seen(event.written_by.rpartition("-")[0], record)

    def _note_scored(self, trajectory: Trajectory) -> None:
        if trajectory.rollout_id in self.scored:
            return
        self.scored.add(trajectory.rollout_id)
        if trajectory.request is not None:
            self._scored_by_run[trajectory.request.run_id] += 1

    def _seen(self, group: str, record: Record, partition: int | None = None) -> None:
        number = record.partition if partition is None else partition
        with self._lock:
            for each in self.progress:
                each.seen(group, number, record.timestamp_ms)
