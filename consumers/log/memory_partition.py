"""One partition of the in-memory log: its records, its leaders, its open transactions."""

from collections.abc import Sequence

from rollcall.consumers.log.epochs import UNKNOWN
from rollcall.schemas.headers import UNREADABLE, Headers

RawHeaders = Sequence[tuple[str | bytes, bytes]]
"""Headers in any form that a producer may write: a name as bytes need not be UTF-8."""
Stored = tuple[bytes | None, bytes | None, int, RawHeaders | None] | None
"""Key, value, append time, headers; None is a hole, such as that of a transaction marker."""


def readable(headers: RawHeaders) -> Headers:
    """Return headers as Kafka's client does: all, or UNREADABLE."""
    try:
        return [(n.decode() if isinstance(n, bytes) else n, value) for n, value in headers]
    except UnicodeDecodeError:
        return list(UNREADABLE)


class MemoryPartition:
    """One partition: its records, and the leader epochs that wrote them."""

    def __init__(self) -> None:
        self.start = 0
        self.records: list[Stored] = []
        self._written = 0
        """The end after the last append; a log that ends below it was truncated."""
        self._epochs = [(0, 0)]
        """First offset and epoch, ascending."""
        self.open: list[int] = []
        """The first offsets of open transactions."""

    @property
    def end(self) -> int:
        return self.start + len(self.records)

    @property
    def stable(self) -> int:
        """The last stable offset: that of the first open transaction, or the end."""
        return min(self.open, default=self.end)

    def time_ms(self, offset: int) -> int:
        """Return the append time of a record; 0 for a hole."""
        stored = self.records[offset - self.start]
        return 0 if stored is None else stored[2]

    def append(self, stored: Stored) -> None:
        self.elect_if_cut()
        self.records.append(stored)
        self._written = self.end

    def cut(self, offset: int) -> None:
        """Lose the records from an offset on, as in an unclean election."""
        del self.records[max(0, offset - self.start) :]
        self.open = [first for first in self.open if first < offset]
        self.elect_if_cut()

    def elect_if_cut(self) -> None:
        """Elect a new leader if the log has lost its tail."""
        if self.end < self._written:
            epoch = self._epochs[-1][1] + 1
            self._epochs = [(at, which) for at, which in self._epochs if at < self.end]
            self._epochs.append((self.end, epoch))
            self._written = self.end

    def leader(self) -> int:
        """Return the epoch of the current leader."""
        self.elect_if_cut()
        return self._epochs[-1][1]

    def epoch_at(self, offset: int) -> int:
        """Return the leader epoch that wrote a record."""
        return next((epoch for at, epoch in reversed(self._epochs) if at <= offset), UNKNOWN)

    def end_of(self, epoch: int) -> int:
        """Return the end of the records of an epoch and those before it."""
        self.elect_if_cut()
        return next((at for at, which in self._epochs if which > epoch >= 0), self.end)


class MemoryTransaction:
    """Records that are hidden, like those behind them, until the transaction is committed."""

    def __init__(self, partition: MemoryPartition) -> None:
        self._partition = partition
        self._offsets: list[int] = []

    def append(self, stored: Stored) -> None:
        self._partition.append(stored)
        self._offsets.append(self._partition.end - 1)
        if len(self._offsets) == 1:
            self._partition.open.append(self._offsets[0])

    def commit(self) -> None:
        """Make the records readable; the marker behind them takes an offset."""
        self._partition.open.remove(self._offsets[0])
        self._partition.append(None)

    def abort(self) -> None:
        """Hide the records for good."""
        for offset in self._offsets:
            if offset >= self._partition.start:
                self._partition.records[offset - self._partition.start] = None
        self.commit()
