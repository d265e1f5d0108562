"""Reading back what a takeover has to know of other topics, a little at every turn of the loop.

The role keeps what it is given meanwhile; its partitions are paused. So a long way back makes a
takeover slow, and never a worker that does not poll.
"""

from array import array

import numpy as np
import structlog
from numpy.typing import NDArray

from consumers.decode_in_order import DecodeInOrder
from consumers.log.protocols import Log, Reader, Record
from schemas.codec import Codec
from schemas.errors import Unavailable
from schemas.ids import digest
from schemas.messages import Trajectory

POLL_S = 0.01
MOST = 2000
WORD_BYTES = 8

log = structlog.get_logger()


def bounds_of(log_: Log, topic: str, partition: int) -> dict[int, tuple[int, int]]:
    """Bounds that know of a partition, also of one that was just added; empty where it is not."""
    bounds = log_.bounds(topic)
    if partition not in bounds:
        log_.topic_names()  # or else a count from before is told again
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
        """Some more; none where there is nothing more at the moment."""
        if self.done:
            return []
        try:
            reader = self._reader = self._reader or self._open()
        except Unavailable as error:
            log.warning("log_away", topic=self._place[0], error=str(error))
            return []
        read = reader.poll(POLL_S, MOST)
        found = [r for r in read if (r.topic, r.partition) == self._place and r.offset < self._end]
        if reader.caught_up() or (found and found[-1].offset == self._end - 1):
            self.done = True
            self.close()
        return found

    def _open(self) -> Reader:
        """Of the other partitions nothing is read."""
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


class Written:
    """The trajectories of one partition that are there already: eight bytes each.

    Without a commit nobody knows which were written; what the journal gives again may be left out
    where it is among these.
    """

    def __init__(self, log_: Log, codec: Codec, topic: str, partition: int) -> None:
        self.known = False
        """Whether all of them are read."""
        bounds = bounds_of(log_, topic, partition)[partition]
        self._back = Lookback(log_, topic, partition, *bounds)
        self._held = DecodeInOrder(codec, Trajectory)
        self._words = array("Q")
        self._sorted: NDArray[np.uint64] = np.empty(0, np.uint64)

    def read(self) -> bool:
        """Read on; False where there is nothing more for now."""
        self._held.add(self._back.read())
        moved = bool(self._held) and self._note()
        if self._back.done and not self._held:
            self._sorted = np.sort(np.frombuffer(self._words, np.uint64))
            self.known = True
        return moved

    def _note(self) -> bool:
        """Note what is there; False where something waits for the registry."""
        for _, trajectory in self._held.ready():
            if isinstance(trajectory, Trajectory):  # what nobody can read is written again
                self._words.append(_word(trajectory))
        return not self._held

    def __contains__(self, trajectory: Trajectory) -> bool:
        word = np.uint64(_word(trajectory))
        at = int(np.searchsorted(self._sorted, word))
        return at < len(self._sorted) and bool(self._sorted[at] == word)

    def close(self) -> None:
        self._back.close()


def _word(trajectory: Trajectory) -> int:
    """A rollout may have ended twice under one id, but not at one place."""
    named = trajectory.rollout_id, trajectory.attempt, trajectory.last_offset
    return int.from_bytes(digest(*named, size_bytes=WORD_BYTES), "big")
