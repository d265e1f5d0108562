"""Facts of the journal, read once: the rollouts that began and ended, and all they imply.

The state of a rollout is kept while it is open; for joins with other topics, only a digest and
a place remain.
"""

from array import array
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from rollcall.consumers.agents.fold.context import FoldContext
from rollcall.consumers.audit.columns import to_words
from rollcall.consumers.audit.ends import RolloutEnds
from rollcall.consumers.audit.implied import ImpliedCommands
from rollcall.consumers.audit.partition_facts import PartitionFacts
from rollcall.consumers.audit.quota_use import QuotaUse
from rollcall.consumers.audit.report import Report
from rollcall.consumers.audit.starts import RolloutStarts
from rollcall.consumers.audit.window import AuditWindow, Horizons
from rollcall.consumers.log.protocols import Record
from rollcall.schemas.codec import Codec
from rollcall.schemas.errors import WireError
from rollcall.schemas.messages import Event, RolloutStarted
from rollcall.schemas.topics import Topics


@dataclass(eq=False)
class JournalFacts:
    """The fold of all journal partitions."""

    codec: Codec
    topics: Topics
    world: FoldContext
    runnable: Callable[[RolloutStarted], bool]
    window: AuditWindow
    report: Report
    quotas: QuotaUse
    owners_at_work: set[str] = field(default_factory=set)
    """Names under which workers decided about rollouts."""
    minutes: set[int] = field(default_factory=set)
    """The times of these decisions, in minutes since 1970."""
    strays: dict[int, int] = field(default_factory=dict)
    """Rollouts that events name while they are not open, with the first place of each."""

    def __post_init__(self) -> None:
        self.horizons = Horizons(self.window, self.topics)
        self.partitions: dict[int, PartitionFacts] = {}
        self.starts, self.ends = RolloutStarts(), RolloutEnds(self.codec, self.topics)
        self.implied = ImpliedCommands()
        self.not_run = array("Q")

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
