"""One partition of the in-memory log: its records, its leaders, its open transactions."""

from collections.abc import Sequence

from consumers.log.epochs import UNKNOWN
from schemas.headers import UNREADABLE, Headers

RawHeaders = Sequence[tuple[str | bytes, bytes]]
"""Headers as anybody may write them: a name as bytes need not be UTF-8."""
Stored = tuple[bytes | None, bytes | None, int, RawHeaders | None] | None
"""Key, value, append time, headers; None is a hole such as a transaction marker leaves."""


def readable(headers: RawHeaders) -> Headers:
    """Headers as a client tells them: all or none, as Kafka's does."""
    try:
        return [(n.decode() if isinstance(n, bytes) else n, value) for n, value in headers]
    except UnicodeDecodeError:
        return list(UNREADABLE)


class MemoryPartition:
    """One partition: what is stored, and which leader epochs wrote it."""

    def __init__(self) -> None:
        self.start = 0
        self.records: list[Stored] = []
        self._written = 0
        """Where the last record ended; a log that ends before that was cut, by whoever it was."""
        self._epochs = [(0, 0)]
        """First offset and epoch, ascending."""
        self.open: list[int] = []
        """The first offsets of open transactions."""

    @property
    def end(self) -> int:
        return self.start + len(self.records)

    @property
    def stable(self) -> int:
        """Where readers of committed records come to: the first open transaction, or the end."""
        return min(self.open, default=self.end)

    def time_ms(self, offset: int) -> int:
        """The append time of a record; 0 where a hole is."""
        stored = self.records[offset - self.start]
        return 0 if stored is None else stored[2]

    def append(self, stored: Stored) -> None:
        self.elect_if_cut()
        self.records.append(stored)
        self._written = self.end

    def cut(self, offset: int) -> None:
        """Lose the records from an offset on, as an unclean election does."""
        del self.records[max(0, offset - self.start) :]
        self.open = [first for first in self.open if first < offset]
        self.elect_if_cut()

    def elect_if_cut(self) -> None:
        """Let a new leader go on from where a log ends that has lost its tail."""
        if self.end < self._written:
            epoch = self._epochs[-1][1] + 1
            self._epochs = [(at, which) for at, which in self._epochs if at < self.end]
            self._epochs.append((self.end, epoch))
            self._written = self.end

    def leader(self) -> int:
        """The epoch of whoever leads it now."""
        self.elect_if_cut()
        return self._epochs[-1][1]

    def epoch_at(self, offset: int) -> int:
        """The leader epoch that wrote a record."""
        return next((epoch for at, epoch in reversed(self._epochs) if at <= offset), UNKNOWN)

    def end_of(self, epoch: int) -> int:
        """Where the records of an epoch and those before it end."""
        self.elect_if_cut()
        return next((at for at, which in self._epochs if which > epoch >= 0), self.end)


class MemoryTransaction:
    """Records of a partition that nobody reads before they are committed, nor what follows them."""

    def __init__(self, partition: MemoryPartition) -> None:
        self._partition = partition
        self._offsets: list[int] = []

    def append(self, stored: Stored) -> None:
        self._partition.append(stored)
        self._offsets.append(self._partition.end - 1)
        if len(self._offsets) == 1:
            self._partition.open.append(self._offsets[0])

    def commit(self) -> None:
        """Let the records be read; the marker behind them takes an offset."""
        self._partition.open.remove(self._offsets[0])
        self._partition.append(None)

    def abort(self) -> None:
        """Let nobody read the records, ever."""
        for offset in self._offsets:
            if offset >= self._partition.start:
                self._partition.records[offset - self._partition.start] = None
        self.commit()
