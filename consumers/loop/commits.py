"""The schedule and contents of commits."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from rollcall.consumers.log.protocols import Commit, Source, TopicPartition
from rollcall.consumers.loop.dead_letters import DeadLetters
from rollcall.consumers.loop.partition_progress import NO_COMMIT, PartitionProgress
from rollcall.consumers.loop.role import Role

COMMIT_EVERY_S = 1.0
COMMIT_EVERY_RECORDS = 5000
"""Records after which a commit is made early; at full load, 500 would
mean forty commits a second."""


@dataclass(eq=False)
class Commits:
    """Commits finished records, except while unreadable records may be a storm of dead letters."""

    source: Source
    role: Role
    partitions: Mapping[TopicPartition, PartitionProgress]
    dead_letters: DeadLetters
    clock: Callable[[], float]
    _records: int = 0
    _refused: int = 0

    def __post_init__(self) -> None:
        self._due = self.clock() + COMMIT_EVERY_S

    def hasten(self) -> None:
        """Make the next commit due at the end of this turn."""
        self._due = self.clock()

    def in_time(self, handed: int) -> None:
        """Request a commit if one is due, or if enough records were handed over since the last."""
        self._records += handed
        now = self.clock()
        if now < self._due and self._records < COMMIT_EVERY_RECORDS:
            return
        self._due = now + COMMIT_EVERY_S
        self._records = 0
        if self.dead_letters.storm_possible():
            return
        if self.source.refused != self._refused:
            self._refused = self.source.refused
            self._forget()
        commits = self._of(self.partitions.values())
        if commits:
            self.source.commit(commits)

    def now(self) -> bool:
        """Commit and wait; False if the commit was refused."""
        if self.dead_letters.storm_possible():
            return True
        refused = self.source.refused
        commits = self._of(self.partitions.values())
        if commits:
            self.source.commit_now(commits)
        if self.source.refused == refused:
            return True
        self._forget()
        return False

    def last(self, partitions: Iterable[PartitionProgress]) -> None:
        """Commit the finished records of partitions that are being revoked, and wait."""
        commits = self._of(partitions)
        if commits:
            self.source.commit_now(commits)

    def _forget(self) -> None:
        """Make every partition commit again after a refusal."""
        for progress in self.partitions.values():
            progress.committed = NO_COMMIT

    def _of(self, partitions: Iterable[PartitionProgress]) -> list[Commit]:
        commits = []
        for progress in partitions:
            progress.advance()
            metadata = self.role.commit_metadata(progress) + progress.mark()
            commit = progress.next_offset, metadata
            if commit != progress.committed:
                progress.committed = commit
                commits.append(Commit(progress.topic, progress.number, *commit))
        return commits
