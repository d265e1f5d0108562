"""What the journal tells, read once: which rollouts began and ended, and what all of them imply.

State of a rollout is kept while it is open; of what has to be joined with other topics a digest and
a place remain.
"""

from array import array
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from consumers.agents.fold.world import World
from consumers.audit.columns import words
from consumers.audit.ends import Ends
from consumers.audit.implied import ImpliedCommands
from consumers.audit.partition_facts import PartitionFacts
from consumers.audit.quota_use import QuotaUse
from consumers.audit.report import Report
from consumers.audit.starts import Starts
from consumers.audit.window import Horizons, Window
from consumers.log.protocols import Record
from schemas.codec import Codec
from schemas.errors import WireError
from schemas.messages import Event, RolloutStarted
from schemas.topics import Topics


@dataclass(eq=False)
class JournalFacts:
    """The fold of all journal partitions."""

    codec: Codec
    topics: Topics
    world: World
    runnable: Callable[[RolloutStarted], bool]
    window: Window
    report: Report
    quotas: QuotaUse
    owners_at_work: set[str] = field(default_factory=set)
    """Names under which somebody decided about rollouts."""
    minutes: set[int] = field(default_factory=set)
    """When that was, in minutes since 1970."""
    strays: dict[int, int] = field(default_factory=dict)
    """Owners that events name while no rollout of theirs is open, and where first."""

    def __post_init__(self) -> None:
        self.horizons = Horizons(self.window, self.topics)
        self.partitions: dict[int, PartitionFacts] = {}
        self.starts, self.ends = Starts(), Ends(self.codec, self.topics)
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
        """The journal is read: sort what is joined, see what is open."""
        for partition in self.partitions.values():
            partition.close()
        self.implied.close(self.owners_at_work)
        self.ends.close()
        self.starts.close()
        self.owners_not_run = words(sorted(self.not_run))
        self.report.open = sum(len(partition.open) for partition in self.partitions.values())
        self.report.not_run_again = len(self.owners_not_run)
        self.report.repeated = self.implied.repeated
