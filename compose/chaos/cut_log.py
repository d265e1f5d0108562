"""A fault of the log: the end of a partition is removed, as after a restored disk.

Only copies are removed: of a request that is in the partition already, appended for this and
committed by the agents. So no rollout is lost, while the group's committed offset is beyond the
log's end. Another copy follows the cut, since the audit counts the removed requests as lost until
the journal has a start at their place.
"""

import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import structlog

from rollcall.compose.chaos.faults import LOG, Fault
from rollcall.compose.chaos.victims import BriefVictim, ServiceVictim, WorkerVictim
from rollcall.compose.chaos.watch import Watch
from rollcall.compose.cluster import Cluster
from rollcall.consumers.log.protocols import Record
from rollcall.producers.publisher import Publisher, flush_all
from rollcall.schemas.errors import DeliveryFailed, Unavailable

MOST_COPIES = 5
COMMITTED_S = 20.0
"""The time within which the agents must commit the copies; else nothing is cut."""
FLUSH_S = 10.0
NAMED_S = 60.0
"""The time after the broker's restart within which a worker must report the loss."""
BATCH = struct.Struct(">qi")
"""The start of a batch of records: its first offset, and the length of the rest."""
LAST_DELTA = struct.Struct(">i")
LAST_DELTA_AT = 23
"""The position in a batch of the difference of its last and first offset."""

log = structlog.get_logger()


@dataclass
class Cut:
    """Copies of a request at the end of a partition, before or after they are cut off."""

    fault: Fault
    request: Record
    first: int
    """The offset of the first copy."""
    end: int
    until: float
    """The deadline of the next step: the commit of the copies, then the report of the loss."""
    named_before: int = 0
    made: bool = False
    """True if the copies are removed."""
    followed: bool = False
    """True if another copy is in their place."""

    @property
    def place(self) -> str:
        return f"{self.request.topic} {self.request.partition}"


@dataclass
class LogVictim(BriefVictim):
    """The end of one partition of the requests; the broker is killed for a cut and restarted.

    A cut has three steps: copies are appended; when they are committed they are cut off; when a
    worker has reported the loss the cut is over. The run waits for all of them.
    """

    cluster: Cluster
    broker: ServiceVictim
    agents: Sequence[WorkerVictim]
    watch: Watch
    requests: Publisher
    """The publisher of the workload's requests; it is flushed before copies are appended."""
    committed_s: float = COMMITTED_S
    named_s: float = NAMED_S
    name: str = LOG
    group: None = None
    cuts: int = 0
    not_cut: list[str] = field(default_factory=list)
    """The reasons of faults for which nothing was cut."""
    unnamed: list[str] = field(default_factory=list)
    """The places of cuts that no worker reported in time."""
    _begun: int = 0
    _cut: Cut | None = None

    def fit(self) -> bool:
        """Return True if the broker is up, an agents worker has joined, and no cut is open."""
        joined = any(worker.fit() for worker in self.agents)
        return self._cut is None and joined and self.broker.works()

    def back(self) -> bool:
        return self._cut is None and self.broker.back()

    def holds_requests_back(self) -> bool:
        """Return True if the workload must write no requests, as they would follow the copies."""
        return self._cut is not None and not self._cut.made

    def begin(self, fault: Fault) -> None:
        held = sorted(self.watch.last_requests.items())
        if not held:
            self._cut_nothing("no request is in the log")
            return
        # In turn, so that a late report of one cut is not taken for the next one's.
        _, request = held[self._begun % len(held)]
        self._begun += 1
        copies = Random(f"log/{fault.at_s}").randint(1, MOST_COPIES)
        try:
            flush_all(self.requests, FLUSH_S, "requests", "nothing is cut")
            first = self._end(request)
            self._append(request, copies)
            end = self._end(request)
        except (Unavailable, DeliveryFailed) as away:
            self._cut_nothing(str(away))
            return
        cut = Cut(fault, request, first, end, time.monotonic() + self.committed_s)
        if end - first == copies:
            self._cut = cut
        else:
            self._cut_nothing(f"{cut.place}: other records came in between the copies")

    def look(self) -> None:
        if self._cut is None:
            return
        if self._cut.made:
            self._judge(self._cut)
        elif self.broker.works() and self._committed(self._cut):
            self._make(self._cut)
        elif time.monotonic() > self._cut.until:
            self._cut_nothing(f"{self._cut.place}: the agents have not committed the copies")

    def _make(self, cut: Cut) -> None:
        """Cut the copies off while the broker is down."""
        cut.named_before = self._named(cut)
        self.broker.kill()
        if self._truncate(cut):
            log.info("log_cut", place=cut.place, first=cut.first, end=cut.end)
            self.cuts += 1
            cut.made, cut.until = True, time.monotonic() + self.named_s
            place = cut.request.topic, cut.request.partition
            self.watch.expect_cut(cut.fault, place, cut.first)
        else:
            self._cut_nothing(f"{cut.place}: other records follow the copies")
        self.broker.stack.start()

    def _judge(self, cut: Cut) -> None:
        """Append a copy after the cut, then wait until a worker has reported the loss."""
        if not self.broker.works():
            cut.until = time.monotonic() + self.named_s
        elif not cut.followed:
            try:
                self._append(cut.request, 1)
                cut.followed = True
            except (Unavailable, DeliveryFailed) as away:
                log.warning("cut_not_written_behind", why=str(away))
        elif self._named(cut) > cut.named_before:
            log.info("loss_reported", place=cut.place)
            self._cut = None
        elif time.monotonic() > cut.until:
            self.unnamed.append(f"{cut.place} at {cut.first}")
            self._cut = None

    def _cut_nothing(self, why: str) -> None:
        log.warning("log_not_cut", why=why)
        self.not_cut.append(why)
        self._cut = None

    def _append(self, request: Record, copies: int) -> None:
        """Append copies of a request to its partition; raises Unavailable and DeliveryFailed.

        It uses a new publisher each time: a broker refuses further records of one whose last
        records were cut off, because of their sequence numbers.
        """
        publisher = self.cluster.log.publisher()
        for _ in range(copies):
            publisher.send(request.topic, request.key, request.value, partition=request.partition)
        flush_all(publisher, FLUSH_S, "copies of a request", "nothing is cut")

    def _end(self, request: Record) -> int:
        return self.cluster.log.bounds(request.topic)[request.partition][1]

    def _committed(self, cut: Cut) -> bool:
        topics, request = self.cluster.topics, cut.request
        try:
            committed = self.cluster.log.committed(topics.group("agents"), request.topic)
        except Unavailable as away:
            log.warning("commit_not_seen", error=str(away))
            return False
        return committed.get(request.partition, 0) >= cut.end

    def _named(self, cut: Cut) -> int:
        """Return the number of workers' reports of a loss of this partition."""
        return sum(f"{cut.place} " in line for worker in self.agents for line in worker.losses)

    def _truncate(self, cut: Cut) -> bool:
        """Remove the copies from the broker's files; False if they are not the last records."""
        data = self.cluster.settings.state() / "services" / "kafka" / "data"
        folder = data / f"{cut.request.topic}-{cut.request.partition}"
        return cut_off(folder, cut.first, cut.end)


def cut_off(folder: Path, first: int, end: int) -> bool:
    """Remove a partition's records from `first` on, if a batch begins there and they end at `end`.

    No broker may have the folder open. It repairs its indexes when it restarts.
    """
    newest = max(folder.glob("*.log"))
    held = newest.read_bytes()
    at, place, last = 0, None, -1
    while at + BATCH.size <= len(held):
        offset, length = BATCH.unpack_from(held, at)
        if at + BATCH.size + length > len(held):
            return False  # the last batch was being written
        place = at if offset == first else place
        (more,) = LAST_DELTA.unpack_from(held, at + LAST_DELTA_AT)
        last, at = offset + more, at + BATCH.size + length
    if place is None or last + 1 != end:
        return False
    with newest.open("r+b") as file:
        file.truncate(place)
    return True
