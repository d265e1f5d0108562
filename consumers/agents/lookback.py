"""Reads back other topics that a takeover needs, a little at each turn of the loop.

The role keeps the records that arrive meanwhile; its partitions are paused. A long way back thus
slows a takeover, but never stops a worker from polling.
"""

from array import array

import numpy as np
import structlog
from numpy.typing import NDArray

from rollcall.consumers.log.protocols import Log, Reader, Record
from rollcall.consumers.loop.decode_in_order import DecodeInOrder
from rollcall.schemas.codec import Codec
from rollcall.schemas.errors import Unavailable
from rollcall.schemas.ids import digest
from rollcall.schemas.messages import Trajectory

POLL_S = 0.01
MOST = 2000
DIGEST_BYTES = 8

log = structlog.get_logger()


def bounds_of(log_: Log, topic: str, partition: int) -> dict[int, tuple[int, int]]:
    """Return bounds that include the partition, even one just added; (0, 0) if unknown."""
    bounds = log_.bounds(topic)
    if partition not in bounds:
        log_.topic_names()  # without this a cached count is used
        bounds = {partition: (0, 0)} | log_.bounds(topic)
    return bounds


class Lookback:
    """The records of one partition below an offset, in order."""

    def __init__(self, log_: Log, topic: str, partition: int, start: int, end: int) -> None:
        self.done = start >= end
        self._log = log_
        self._place = topic, partition
        self._start = start
        self._end = end
        self._reader: Reader | None = None

    def read(self) -> list[Record]:
        """Return some more records; none if nothing more is available now."""
        if self.done:
            return []
        try:
            reader = self._reader = self._reader or self._open()
        except Unavailable as error:
            log.warning("log_unavailable", topic=self._place[0], error=str(error))
            return []
        read = reader.poll(POLL_S, MOST)
        below = [r for r in read if (r.topic, r.partition) == self._place and r.offset < self._end]
        if reader.caught_up() or (below and below[-1].offset == self._end - 1):
            self.done = True
            self.close()
        return below

    def _open(self) -> Reader:
        """Open a reader that skips all other partitions."""
        topic, partition = self._place
        bounds = bounds_of(self._log, topic, partition)
        starts = {(topic, number): end for number, (_, end) in bounds.items()}
        low, high = bounds[partition]
        starts[self._place] = min(max(self._start, low), high)
        return self._log.reader([topic], starts)

    def close(self) -> None:
        if self._reader is not None:
            self._reader.close()
            self._reader = None


class WrittenTrajectories:
    """The trajectories of one partition that are written already: eight bytes each.

    Without a commit it is unknown which were written; a trajectory that the journal yields again
    may be left out if it is among these.
    """

    def __init__(self, log_: Log, codec: Codec, topic: str, partition: int) -> None:
        self.known = False
        """True if all of them are read."""
        bounds = bounds_of(log_, topic, partition)[partition]
        self._back = Lookback(log_, topic, partition, *bounds)
        self._held = DecodeInOrder(codec, Trajectory)
        self._digests = array("Q")
        self._sorted: NDArray[np.uint64] = np.empty(0, np.uint64)

    def read(self) -> bool:
        """Read further; False if nothing more is available now."""
        self._held.add(self._back.read())
        moved = bool(self._held) and self._note()
        if self._back.done and not self._held:
            self._sorted = np.sort(np.frombuffer(self._digests, np.uint64))
            self.known = True
        return moved

    def _note(self) -> bool:
        """Note the records that are decoded; False if one waits for the registry."""
        for _, trajectory in self._held.ready():
            if isinstance(trajectory, Trajectory):  # unreadable ones are written again
                self._digests.append(_short_digest(trajectory))
        return not self._held

    def __contains__(self, trajectory: Trajectory) -> bool:
        short = np.uint64(_short_digest(trajectory))
        at = int(np.searchsorted(self._sorted, short))
        return at < len(self._sorted) and bool(self._sorted[at] == short)

    def close(self) -> None:
        self._back.close()


def _short_digest(trajectory: Trajectory) -> int:
    """Return eight bytes that identify an end: one rollout id may end
    twice, at different offsets."""
    named = trajectory.rollout_id, trajectory.attempt, trajectory.last_offset
    return int.from_bytes(digest(*named, size_bytes=DIGEST_BYTES), "big")
