"""Detects repeated requests: the ids that the last requests of a partition asked for.

A producer that publishes again after a crash, or a file that is submitted twice, uses the same ids.
A worker that reads such a request within WINDOW offsets of the first refuses it as `repeated`. The
log alone decides that: after a takeover the keys of the window are read back, and a key is the id.
Other producers may use other keys; their ids are known as long as the partition stays with one
worker.
"""

from array import array
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b

from rollcall.consumers.agents.lookback import Lookback
from rollcall.consumers.log.protocols import Log, Record

WINDOW = 100_000
"""Offsets of a partition; they take four megabytes."""
NONE = -1


@dataclass(frozen=True, slots=True, order=True)
class FirstRequest:
    """The first request for a rollout; of those in several partitions it is the least one."""

    at_ms: int
    """Its append time."""
    partition: int
    offset: int


class RecentRequests:
    """The last requests of one partition, as a hash table with chains in a ring.

    Every slot of the ring holds the offset of the previous request in the same hash bucket, so a
    chain runs back in time, and ends where it leaves the window.
    """

    def __init__(
        self, log_: Log, topic: str, partition: int, end: int, *, window: int = WINDOW
    ) -> None:
        self.window = window
        self._partition = partition
        self._back = Lookback(log_, topic, partition, max(0, end - window), end)
        self._next = end
        self._newest = array("q", [NONE]) * (1 << window.bit_length())
        self._before = array("q", [NONE]) * window
        self._digests = array("Q", [0]) * window
        self._first = array("q", [NONE]) * window
        self._first_ms = array("q", [0]) * window

    @property
    def known(self) -> bool:
        """True if the window has been read back."""
        return self._back.done

    def read(self) -> bool:
        """Read further back; False if nothing more is available now."""
        records = self._back.read()
        for record in records:
            if record.key:
                self.note(record.key, record)
        return bool(records)

    def close(self) -> None:
        self._back.close()

    def first(self, named: bytes, offset: int | None = None) -> FirstRequest | None:
        """Return the first request for this id in the window below `offset`, or None."""
        short = _short_digest(named)
        at = self._newest[short % len(self._newest)]
        lowest = max(0, (self._next if offset is None else offset) - self.window)
        while at >= lowest:
            slot = at % self.window
            if self._digests[slot] == short:
                return FirstRequest(self._first_ms[slot], self._partition, self._first[slot])
            at = self._before[slot]
        return None

    def note(self, named: bytes, record: Record) -> None:
        """Add the next request of the partition."""
        first = self.first(named, record.offset)
        first = first or FirstRequest(record.timestamp_ms, self._partition, record.offset)
        short, slot = _short_digest(named), record.offset % self.window
        bucket = short % len(self._newest)
        self._before[slot], self._newest[bucket] = self._newest[bucket], record.offset
        self._digests[slot] = short
        self._first[slot], self._first_ms[slot] = first.offset, first.at_ms
        self._next = record.offset + 1


@lru_cache(maxsize=64)
def _short_digest(named: bytes) -> int:
    """Return the digest of an id; cached, as each partition of a worker looks it up in turn."""
    return int.from_bytes(blake2b(named, digest_size=8).digest(), "big")
