"""A fault of the log itself: the end of a partition is gone, as after a disk that was restored.

Only copies are cut off: of a request that stands in the partition already, appended for this and
committed by the agents. So no rollout is lost, while the group's commit lies beyond the log's end.
"""

import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import structlog

from compose.chaos.faults import LOG, Fault
from compose.chaos.victims import BriefVictim, ServiceVictim, WorkerVictim
from compose.chaos.watch import Watch
from compose.cluster import Cluster
from compose.processes import holds_within
from consumers.log.protocols import Record
from producers.publisher import Publisher, flush_all
from schemas.errors import DeliveryFailed, Unavailable

MOST_COPIES = 5
COMMITTED_S = 10.0
"""Within so long the agents commit the copies; else nothing is cut."""
NAMED_S = 60.0
"""Within so long after the broker is back, a worker must have named the loss."""
BATCH = struct.Struct(">qi")
"""The start of a batch of records: its first offset, and the length of the rest."""
LAST_DELTA = struct.Struct(">i")
LAST_DELTA_AT = 23
"""Where a batch says how far its last offset is from its first."""

log = structlog.get_logger()


@dataclass
class LogVictim(BriefVictim):
    """The end of one partition of the requests; the broker is killed for it and started again."""

    cluster: Cluster
    broker: ServiceVictim
    agents: Sequence[WorkerVictim]
    watch: Watch
    requests: Publisher
    """The publisher of the workload's requests; it is flushed before copies are appended."""
    name: str = LOG
    group: None = None
    cuts: int = 0
    unnamed: list[str] = field(default_factory=list)
    """Places of cuts that no worker named in time."""
    _cut: str = ""
    _named_before: int = 0
    _until: float = 0.0

    def fit(self) -> bool:
        """Not while the broker is down or comes back, or a loss is yet to be named."""
        return self.broker.fit() and self.broker.lives() and not self._cut

    def back(self) -> bool:
        return self.broker.back() and not self._cut

    def begin(self, fault: Fault) -> None:
        dice = Random(f"log/{fault.at_s}")
        held = sorted(self.watch.last_requests.items())
        if not held:
            log.warning("nothing_cut", why="no request is in the log")
            return
        partition, request = dice.choice(held)
        try:
            first, end = self._append(request, dice.randint(1, MOST_COPIES))
        except (Unavailable, DeliveryFailed) as away:
            log.warning("nothing_cut", why=str(away))
            return
        named = self._named()
        self.broker.kill()
        if cut_off(self._folder(partition), first, end):
            log.info("log_cut", topic=request.topic, partition=partition, first=first, end=end)
            self.cuts += 1
            self._cut, self._named_before = f"{request.topic} {partition} at {first}", named
            self._until = time.monotonic() + NAMED_S
            self.watch.expect_cut()
        else:
            log.warning("nothing_cut", why="other records follow the copies")
        self.broker.stack.start()

    def look(self) -> None:
        if not self._cut or not self.broker.fit():
            return
        if self._named() > self._named_before:
            self._cut = ""
        elif time.monotonic() > self._until:
            self.unnamed.append(self._cut)
            self._cut = ""

    def _append(self, request: Record, copies: int) -> tuple[int, int]:
        """Append copies of a request and wait for their commit; return their offsets' bounds.

        Raises DeliveryFailed, and Unavailable, also where another record came in between or the
        agents have not committed the copies in time.
        """
        topic, partition = request.topic, request.partition
        flush_all(self.requests, COMMITTED_S, "requests", "nothing is cut")
        first = self._end(partition)
        publisher = self.cluster.log.publisher()
        for _ in range(copies):
            publisher.send(topic, request.key, request.value, partition=partition)
        flush_all(publisher, COMMITTED_S, "copies of a request", "nothing is cut")
        end = self._end(partition)
        if end - first != copies:
            msg = f"{topic} {partition}: others wrote between the copies"
            raise Unavailable(msg)
        if not holds_within(lambda: self._committed(partition) >= end, COMMITTED_S):
            msg = f"{topic} {partition}: the agents have not committed the copies"
            raise Unavailable(msg)
        return first, end

    def _end(self, partition: int) -> int:
        return self.cluster.log.bounds(self.cluster.topics.requests)[partition][1]

    def _committed(self, partition: int) -> int:
        topics = self.cluster.topics
        return self.cluster.log.committed(topics.group("agents"), topics.requests).get(partition, 0)

    def _named(self) -> int:
        """How many times a worker has ended by the name of a loss."""
        return sum(worker.losses for worker in self.agents)

    def _folder(self, partition: int) -> Path:
        data = self.cluster.settings.state() / "services" / "kafka" / "data"
        return data / f"{self.cluster.topics.requests}-{partition}"


def cut_off(folder: Path, first: int, end: int) -> bool:
    """Remove a partition's records from an offset on, if they end there and a batch begins there.

    No broker may have the folder open. It mends its indexes itself when it comes back.
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
