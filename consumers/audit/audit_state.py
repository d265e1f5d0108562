"""The shared state of an audit: the window, the journal, and the report."""

from collections.abc import Sequence, Set
from dataclasses import dataclass, field
from typing import Any, TypeVar

from rollcall.consumers.audit.columns import find_one, pack_place, unpack_place, word_of
from rollcall.consumers.audit.journal_facts import JournalFacts
from rollcall.consumers.audit.report import Breach, Report
from rollcall.consumers.audit.window import AuditWindow
from rollcall.consumers.log.protocols import Record, TopicPartition
from rollcall.consumers.loop.dead_letter_records import At, SkipOrder
from rollcall.consumers.loop.finished_offsets import finished_above
from rollcall.schemas.codec import Codec
from rollcall.schemas.errors import WireError
from rollcall.schemas.topics import Topics

M = TypeVar("M")


@dataclass(frozen=True)
class AuditState:
    """One audit."""

    codec: Codec
    topics: Topics
    window: AuditWindow
    journal: JournalFacts
    report: Report
    drained: bool
    scorings: Sequence[str] | None = None
    """The scorings that owe every trajectory a score; None for those that the requests name."""
    buried: set[tuple[str, int, int]] = field(default_factory=set)
    """Records that have a dead letter."""
    skips: list[SkipOrder] = field(default_factory=list)
    """Ranges that an operator told a group to skip."""
    resends: dict[At, str] = field(default_factory=dict)
    """Letters whose content an operator has sent again, with its digest."""
    _above: dict[tuple[str, TopicPartition], Set[int]] = field(default_factory=dict)

    def breach(self, invariant: str, record: Record, text: str, kind: str = "wrong") -> None:
        """Report a broken invariant at a record."""
        place_ = record.topic, record.partition, record.offset
        self.report.add(Breach(invariant, text, *place_, kind))

    def decoded(self, record: Record, kind: type[M]) -> M | None:
        """Decode a message; count it and return None if it is unreadable."""
        try:
            return self.codec.decode(record.value, kind)
        except WireError as error:
            self.report.note_unreadable(record.topic, record.partition, record.offset, error)
            return None

    def picked(self, record: Record, kind: type, *paths: str) -> tuple[Any, ...] | None:
        """Decode some fields of a message; count it and return None if it is unreadable."""
        try:
            return self.codec.pick(record.value, kind, *paths)
        except WireError as error:
            self.report.note_unreadable(record.topic, record.partition, record.offset, error)
            return None

    def commit(self, group: str, topic: str, partition: int) -> int:
        """Return the committed offset of a group in a partition; 0 if there is none."""
        commit = self.window.commits.get(group, {}).get((topic, partition))
        return 0 if commit is None else commit.offset

    def group_of(self, topic: str) -> str:
        """Return the group that reads a work topic; empty for other topics."""
        topics = self.topics
        if topic == topics.events:
            return topics.group("agents")
        if topic == topics.steps:
            return topics.group("environments")
        calls = topics.calls("")
        return topics.group("models", topic.removeprefix(calls)) if topic.startswith(calls) else ""

    def finished(self, group: str, topic: str, partition: int, offset: int) -> bool:
        """Return True if a group has finished a record of a work topic.

        The record is below its committed offset, or is named as finished in the commit's metadata.
        """
        here = topic, partition
        commit = self.window.commits.get(group, {}).get(here)
        if commit is None:
            return False
        if offset < commit.offset:
            return True
        if (group, here) not in self._above:
            self._above[group, here] = finished_above(commit.metadata, commit.offset)
        return offset in self._above[group, here]

    def put_aside(self, record: Record) -> bool:
        """Return True if a record of a work topic was buried, or its group was told to skip it."""
        group = self.group_of(record.topic)
        return (record.topic, record.partition, record.offset) in self.buried or any(
            (skip.group, skip.topic, skip.partition) == (group, record.topic, record.partition)
            and skip.first <= record.offset <= skip.last
            for skip in self.skips
        )

    def owed(self, cause: int) -> bool:
        """Return True if the effect of a journal entry, given by its place, is due by now."""
        partition, offset = unpack_place(cause)
        below = self.commit(self.topics.group("agents"), self.topics.events, partition)
        if self.drained or offset < below:
            return True
        self.report.pending += 1
        return False

    def after(self, record: Record) -> bool:
        """Return True if a record is later than the judged window."""
        return 0 < self.window.until_ms <= record.timestamp_ms

    def before(self, rollout_id: str, partition: int) -> bool:
        """Return True if a rollout began before the window; note it, to be counted at the end."""
        if (self.topics.events, partition) not in self.window.starts:
            return False
        owner = word_of(rollout_id.encode())
        if find_one(self.journal.starts.owners, owner) >= 0:
            return False
        self.journal.strays.setdefault(owner, pack_place(partition, 0))
        return True
