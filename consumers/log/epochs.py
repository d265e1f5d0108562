"""The leader epochs that wrote the parts of a partition, as far as a member has read it.

Offset and leader epoch together identify a record for good: a log that was truncated and grew again
has other records at the same offsets, under a higher epoch.
"""

from bisect import bisect_right

from rollcall.schemas.messages import NO_EPOCH

UNKNOWN = NO_EPOCH
"""The epoch of a record whose leader is not known."""


class Epochs:
    """The leader epochs of the records that one member has read of a partition."""

    def __init__(self, committed: int = 0, epoch: int = UNKNOWN) -> None:
        """Begin with a commit's offset, and the epoch of the record before it."""
        self._committed = committed, epoch
        self._firsts: list[int] = []
        self._epochs: list[int] = []
        self._next = -1
        """The offset behind the last record that was read."""

    def saw(self, offset: int, epoch: int) -> None:
        """Note a record, in order."""
        self._next = offset + 1
        if not self._epochs or epoch != self._epochs[-1]:
            self._firsts.append(offset)
            self._epochs.append(epoch)

    def before(self, offset: int) -> int:
        """Return the epoch of the record before an offset, if it was read
        or the commit states it."""
        at = bisect_right(self._firsts, offset - 1) - 1
        if at >= 0 and offset <= self._next:
            return self._epochs[at]
        return self._committed[1] if offset == self._committed[0] else UNKNOWN

    def forget(self, offset: int) -> None:
        """Drop entries that precede the record before an offset."""
        at = bisect_right(self._firsts, offset - 1) - 1
        if at > 0:
            del self._firsts[:at], self._epochs[:at]
