"""A member of a group of the in-memory log, and the group."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from consumers.log.protocols import Commit, Held, Listener, Record, TopicPartition

if TYPE_CHECKING:
    from consumers.log.memory_log import MemoryLog

WORD_LIMIT = 4095
"""Measured on the broker: a commit with 4,096 bytes of metadata is refused."""


class MemoryGroup:
    """Who is in a group, who owns which partition, and what was committed."""

    def __init__(self) -> None:
        self.members: list[MemorySource] = []
        self.owner: dict[TopicPartition, MemorySource] = {}
        self.committed: dict[TopicPartition, tuple[int, str]] = {}


class MemorySource:
    """A member of a group. Rebalances happen in `poll`, as they do in Kafka."""

    def __init__(
        self, log: "MemoryLog", group: MemoryGroup, topics: Sequence[str], listener: Listener
    ) -> None:
        self.log = log
        self.topics = list(topics)
        self.listener = listener
        self.positions: dict[TopicPartition, int] = {}
        self.paused: set[TopicPartition] = set()
        self.refused = 0
        self._group = group
        self._at_end: set[TopicPartition] = set()
        self._ended: list[tuple[str, int, int]] = []
        group.members.append(self)

    def poll(self, timeout_s: float, most: int = 500) -> list[Record]:
        del timeout_s
        if self in self._group.members:  # a zombie reads on until it learns that it is one
            self._rebalance()
        records: list[Record] = []
        for tp in list(self.positions):
            if tp in self.paused:
                continue
            before = self.positions[tp]
            read, self.positions[tp] = self.log.read_on(*tp, before, most - len(records))
            records += read
            if self.positions[tp] > before:
                self._at_end.discard(tp)
            if len(records) < most:
                self._come_to_end(tp)
        return records

    def _come_to_end(self, tp: TopicPartition) -> None:
        """Tell of the end together with the last records, once until there is more."""
        if tp not in self._at_end:
            self._at_end.add(tp)
            self._ended.append((*tp, self.positions[tp]))

    def ended(self) -> list[tuple[str, int, int]]:
        ended, self._ended = self._ended, []
        return ended

    def _share(self) -> set[TopicPartition]:
        """Range assignment: the same numbers of every topic meet in one member."""
        mine = set()
        for topic in self.topics:
            members = [m for m in self._group.members if topic in m.topics]
            for number in range(self.log.partitions(topic)):
                if members[number * len(members) // self.log.partitions(topic)] is self:
                    mine.add((topic, number))
        return mine

    def _rebalance(self) -> None:
        share = self._share()
        leaving = [tp for tp in self.positions if tp not in share]
        if leaving:
            self.listener.revoked(leaving)
            self._forget(leaving)
        for tp in sorted(share - self.positions.keys()):
            if tp not in self._group.owner:
                self._group.owner[tp] = self
                self.positions[tp] = self.listener.assigned(self._held(tp))

    def _held(self, tp: TopicPartition) -> Held:
        partition = self.log.topics[tp[0]][tp[1]]
        offset, metadata = self._group.committed.get(tp, (None, ""))
        return Held(*tp, offset, metadata, partition.start, partition.end)

    def _forget(self, partitions: Iterable[TopicPartition]) -> None:
        for tp in list(partitions):
            self.positions.pop(tp, None)
            self.paused.discard(tp)
            self._at_end.discard(tp)
            if self._group.owner.get(tp) is self:
                del self._group.owner[tp]

    def commit(self, commits: Sequence[Commit]) -> None:
        for commit in commits:
            tp = commit.topic, commit.partition
            # Of any member, also for what is another's by now: Kafka checks no more than that.
            if self in self._group.members and len(commit.metadata) <= WORD_LIMIT:
                self._group.committed[tp] = commit.offset, commit.metadata
            else:
                self.refused += 1

    def commit_now(self, commits: Sequence[Commit]) -> None:
        self.commit(commits)

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        self.paused.update(partitions)

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        """What goes on is told anew when it has come to its end."""
        going_on = self.paused.intersection(partitions)
        self.paused -= going_on
        self._at_end -= going_on

    def close(self) -> None:
        if self.positions:
            self.listener.revoked(list(self.positions))
        self.kill()

    def kill(self) -> None:
        """Leave as SIGKILL does: no callback, no commit; the group deals the partitions anew."""
        if self in self._group.members:
            self._group.members.remove(self)
        owned = [tp for tp, owner in self._group.owner.items() if owner is self]
        self._forget({*self.positions, *owned})

    def expel(self) -> None:
        """Be taken for dead while alive: partitions go to others, this one learns it later."""
        for tp in self.positions:
            self._group.owner.pop(tp, None)
        self._group.members.remove(self)

    def rejoin(self) -> None:
        """What a zombie's next heartbeat does: everything is lost, then it joins again."""
        lost = list(self.positions)
        self.listener.lost(lost)
        self._forget(lost)
        self._group.members.append(self)
