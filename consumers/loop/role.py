"""What a group does with its records; the loop knows nothing else about it."""

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import structlog

from consumers.log.protocols import Held, Record
from consumers.loop.finished_offsets import NOTHING, above_commit, read_finished
from consumers.loop.partition_progress import PartitionProgress
from schemas.errors import KilledWorkers, WireError

SPAN_RECORDS = 2000
"""Records of one partition in hand at once."""
SPAN_THINNED = 200_000
"""Records that may be finished behind one that takes long, such as an opening that waits for its
turn. A restart does not repeat them as far as the commit's word has room for their offsets."""


log = structlog.get_logger()


def said_once(held: Held) -> None:
    """Say that the word of a commit is none of ours; it is given with an assignment, once."""
    log.warning(
        "commit_word_unreadable",
        topic=held.topic,
        partition=held.partition,
        offset=held.committed,
        word=held.metadata[:40],
        then="it counts as none: what was finished above the commit is done once more",
    )


class Role(Protocol):
    """What a group does; it is usable as soon as it is made."""

    name: str
    topics: Sequence[str]
    journals: Sequence[str]
    """Topics of which all readers must come to the same: what one cannot read, it waits for."""
    poll_s: float
    """How long a poll may wait while work is in flight."""

    def expects(self, topic: str) -> type:
        """The message type of a topic's values."""
        ...

    def assigned(self, held: Held, progress: PartitionProgress) -> int:
        """Return the offset to start from."""
        ...

    def dropped(self, progress: PartitionProgress) -> None:
        """The partition is gone; forget its work. Nothing of it will be committed any more."""
        ...

    def at_end(self, progress: PartitionProgress) -> None:
        """All there was up to `progress.end` has been handed over."""
        ...

    def handle(self, batch: Iterable[tuple[Record, Any]]) -> None:
        """Handle decoded records; each is closed now or later.

        They can be gone through once, and end when the turn's time is over.
        """
        ...

    def unreadable(self, record: Record, error: WireError) -> None:
        """A record cannot be read; it is buried when this returns."""
        ...

    def fatal(self, record: Record, message: Any, error: KilledWorkers) -> bool:
        """Answer a record that kills whoever takes it, and do nothing else with it.

        False where there is no answer: it is buried then.
        """
        ...

    def tick(self) -> None:
        """Do what is due, and collect what was finished elsewhere."""
        ...

    def commit_metadata(self, progress: PartitionProgress) -> str:
        """The word that goes with a commit of `progress.next_offset`."""
        ...

    def waits(self, progress: PartitionProgress) -> bool:
        """Whether none of the partition's records may be handed over yet, only kept in order."""
        ...

    def full(self, progress: PartitionProgress) -> bool:
        """Whether the partition should be paused."""
        ...

    def in_flight(self) -> int:
        """Pieces of work begun and not ended; the loop polls briefly while there are any."""
        ...

    def leave(self, *, patient: bool) -> None:
        """The worker takes nothing more: let go at once of what another goes on with as well.

        Its records stay open. Said again and again while work is in flight; who is patient lets
        all of that come to its end.
        """
        ...

    def close(self) -> None:
        """The worker has left its group: give back what would outlive it."""
        ...


class WorkRole:
    """What roles on work topics share: order does not matter, finished offsets are remembered."""

    name = ""
    topics: Sequence[str] = ()
    journals: Sequence[str] = ()
    poll_s = 0.0

    def assigned(self, held: Held, progress: PartitionProgress) -> int:
        read = read_finished(held.metadata, progress.next_offset)
        if read is None:
            said_once(held)
        progress.skip = read or NOTHING
        return progress.next_offset

    def dropped(self, progress: PartitionProgress) -> None:
        """Nothing is kept per partition."""

    def at_end(self, progress: PartitionProgress) -> None:
        """Nothing waits for that."""

    def unreadable(self, record: Record, error: WireError) -> None:
        """Nobody has to be told."""

    def fatal(self, record: Record, message: Any, error: KilledWorkers) -> bool:
        del record, message, error
        return False

    def tick(self) -> None:
        """Nothing is due."""

    def commit_metadata(self, progress: PartitionProgress) -> str:
        return above_commit(progress)

    def waits(self, progress: PartitionProgress) -> bool:
        del progress
        return False

    def full(self, progress: PartitionProgress) -> bool:
        share = 2 if progress.paused else 1
        if len(progress.taken) > SPAN_RECORDS // 2:
            progress.advance()  # what is finished is not in hand, though no commit has said so yet
        if len(progress.taken) > SPAN_RECORDS // share:
            progress.thin()
        in_hand = len(progress.taken) - self.cannot_begin(progress.number)
        behind = progress.thinned + len(progress.taken)
        return in_hand > SPAN_RECORDS // share or behind > SPAN_THINNED // share

    def cannot_begin(self, partition: int) -> int:
        """Records in hand that wait for what others do not need: they hold up none of these."""
        del partition
        return 0

    def in_flight(self) -> int:
        return 0

    def leave(self, *, patient: bool) -> None:
        """What is in flight comes to its end soon."""

    def close(self) -> None:
        """Nothing outlives it."""
