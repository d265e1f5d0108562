"""Facts of the journal, read once: the rollouts that began and ended, and all they imply.

The state of a rollout is kept while it is open; for joins with other topics, only a digest and
a place remain.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from rollcall.consumers.audit.columns import to_words
from rollcall.consumers.audit.partition_facts import PartitionFacts
from rollcall.consumers.audit.rollout_facts import RolloutFacts
from rollcall.consumers.log.protocols import Record
from rollcall.schemas.errors import WireError
from rollcall.schemas.messages import Event


@dataclass(eq=False)
class JournalFacts(RolloutFacts):
    """The fold of all journal partitions."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.partitions: dict[int, PartitionFacts] = {}

    def take(self, records: Iterable[Record]) -> None:
        """Take records of the journal, in order within each partition."""
        for record in records:
            partition = self.partitions.get(record.partition)
            if partition is None:
                partition = PartitionFacts(self, record.partition)
                self.partitions[record.partition] = partition
            try:
                event = self.codec.decode(record.value, Event)
            except WireError as error:
                self.report.note_unreadable(record.topic, record.partition, record.offset, error)
                continue
            partition.take(event, record.offset, record.timestamp_ms)

    def close(self) -> None:
        """Sort for joins after the journal is read, and count open rollouts."""
        for partition in self.partitions.values():
            partition.close()
        self.implied.close(self.owners_at_work)
        self.ends.close()
        self.starts.close()
        self.owners_not_run = to_words(sorted(self.not_run))
        self.report.open = sum(len(partition.open) for partition in self.partitions.values())
        self.report.not_run_again = len(self.owners_not_run)
        self.report.repeated = self.implied.repeated
