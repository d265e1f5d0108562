"""The interface between the loop and a group's work on its records."""

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import structlog

from rollcall.consumers.log.protocols import Held, Record
from rollcall.consumers.loop.finished_offsets import NOTHING, above_commit, read_finished
from rollcall.consumers.loop.partition_progress import PartitionProgress
from rollcall.schemas.errors import KilledWorkers, WireError

SPAN_RECORDS = 2000
"""The most records of one partition in flight at once."""
SPAN_THINNED = 200_000
"""The most records that may be finished behind one that takes long, such as an opening that
waits for its turn. A restart does not repeat those whose offsets fit into the commit's metadata."""


log = structlog.get_logger()


def log_invalid_metadata(held: Held) -> None:
    """Log that a commit's metadata is invalid; called once, at the assignment."""
    log.warning(
        "commit_metadata_invalid",
        topic=held.topic,
        partition=held.partition,
        offset=held.committed,
        word=held.metadata[:40],
        then="it counts as none: what was finished above the commit is done once more",
    )


class Role(Protocol):
    """A group's work on records; ready for use when constructed."""

    name: str
    topics: Sequence[str]
    journals: Sequence[str]
    """Topics of which all readers must fold the same: a reader waits for what it cannot read."""
    poll_s: float
    """The timeout of a poll while work is in flight, in seconds."""

    def expects(self, topic: str) -> type:
        """Return the message type of a topic's values."""
        ...

    def assigned(self, held: Held, progress: PartitionProgress) -> int:
        """Take over a partition; return the offset to start from."""
        ...

    def dropped(self, progress: PartitionProgress) -> None:
        """Forget the work of a partition that is gone. No more of it will be committed."""
        ...

    def at_end(self, progress: PartitionProgress) -> None:
        """Note that all records up to `progress.end` have been handed over."""
        ...

    def handle(self, batch: Iterable[tuple[Record, Any]]) -> None:
        """Handle decoded records; each is closed now or later.

        The batch can be iterated once, and ends when the turn's time is over.
        """
        ...

    def unreadable(self, record: Record, error: WireError) -> None:
        """Note a record that cannot be read; it is buried after this."""
        ...

    def fatal(self, record: Record, message: Any, error: KilledWorkers) -> bool:
        """Answer a record that kills workers, and do nothing else with it.

        False if there is no answer: it is buried then.
        """
        ...

    def tick(self) -> None:
        """Do due work, and collect results from other threads."""
        ...

    def commit_metadata(self, progress: PartitionProgress) -> str:
        """Return the metadata for a commit of `progress.next_offset`."""
        ...

    def waits(self, progress: PartitionProgress) -> bool:
        """Return True if the partition's records may not be handed over yet, only kept in order."""
        ...

    def full(self, progress: PartitionProgress) -> bool:
        """Return True if the partition should be paused."""
        ...

    def in_flight(self) -> int:
        """Return the number of pieces of work in flight; the loop polls
        briefly while there are any."""
        ...

    def leave(self, *, patient: bool) -> None:
        """Release at once the work that another worker can take over: no more records are taken.

        The records of released work stay open. Called repeatedly while work is in flight; if
        `patient`, work in flight may finish.
        """
        ...

    def close(self) -> None:
        """Release resources that would outlive the worker; it has left its group."""
        ...


class WorkRole:
    """The common part of roles on work topics: order does not matter, finished offsets are kept."""

    name = ""
    topics: Sequence[str] = ()
    journals: Sequence[str] = ()
    poll_s = 0.0

    def assigned(self, held: Held, progress: PartitionProgress) -> int:
        read = read_finished(held.metadata, progress.next_offset)
        if read is None:
            log_invalid_metadata(held)
        progress.skip = read or NOTHING
        return progress.next_offset

    def dropped(self, progress: PartitionProgress) -> None:
        """Do nothing: no state is kept per partition."""

    def at_end(self, progress: PartitionProgress) -> None:
        """Do nothing: no work waits for the end."""

    def unreadable(self, record: Record, error: WireError) -> None:
        """Do nothing: no other group has to know."""

    def fatal(self, record: Record, message: Any, error: KilledWorkers) -> bool:
        del record, message, error
        return False

    def tick(self) -> None:
        """Do nothing: no work is due."""

    def commit_metadata(self, progress: PartitionProgress) -> str:
        return above_commit(progress)

    def waits(self, progress: PartitionProgress) -> bool:
        del progress
        return False

    def full(self, progress: PartitionProgress) -> bool:
        share = 2 if progress.paused else 1
        if len(progress.taken) > SPAN_RECORDS // 2:
            progress.advance()  # finished records are not in flight, even if uncommitted
        if len(progress.taken) > SPAN_RECORDS // share:
            progress.thin()
        in_hand = len(progress.taken) - self.cannot_begin(progress.number)
        behind = progress.thinned + len(progress.taken)
        return in_hand > SPAN_RECORDS // share or behind > SPAN_THINNED // share

    def cannot_begin(self, partition: int) -> int:
        """Return the number of records that wait for resources others do not
        need; they hold up none."""
        del partition
        return 0

    def in_flight(self) -> int:
        return 0

    def leave(self, *, patient: bool) -> None:
        """Do nothing: work in flight ends soon."""

    def close(self) -> None:
        """Do nothing: no resource outlives it."""
