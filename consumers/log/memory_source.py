"""A consumer group of the in-memory log, and its members."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from rollcall.consumers.log.epochs import UNKNOWN, Epochs
from rollcall.consumers.log.memory_topics import MemoryTopics
from rollcall.consumers.log.protocols import Commit, Held, Listener, Record, TopicPartition

METADATA_LIMIT = 4095
"""Measured on the broker: a commit with 4,096 bytes of metadata is refused."""


class MemoryGroup:
    """The members of a group, the owners of its partitions, and its commits."""

    def __init__(self) -> None:
        self.members: list[MemorySource] = []
        self.owner: dict[TopicPartition, MemorySource] = {}
        self.committed: dict[TopicPartition, tuple[int, str]] = {}
        self._epochs: dict[TopicPartition, tuple[int, int]] = {}
        """The offset of the last commit, with its leader epoch."""

    def record_commit(self, commit: Commit) -> None:
        """Replace the commit of a partition."""
        tp = commit.topic, commit.partition
        self.committed[tp] = commit.offset, commit.metadata
        self._epochs[tp] = commit.offset, commit.leader_epoch

    def commit_of(self, tp: TopicPartition) -> Commit:
        """Return the commit of a partition."""
        offset, metadata = self.committed[tp]
        at, epoch = self._epochs.get(tp, (-1, UNKNOWN))
        return Commit(*tp, offset, metadata, epoch if at == offset else UNKNOWN)


class MemorySource:
    """A member of a group. Rebalances happen in `poll`, like in Kafka."""

    def __init__(
        self, log: MemoryTopics, group: MemoryGroup, topics: Sequence[str], listener: Listener
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
        self._epochs: dict[TopicPartition, Epochs] = {}
        self._ids: dict[TopicPartition, str] = {}
        """By owned partition, the id of its topic."""
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
            read, self.positions[tp] = self.log.read_on(
                *tp, before, most - len(records), self._epochs[tp]
            )
            records += read
            if self.positions[tp] > before:
                self._at_end.discard(tp)
            if len(records) < most:
                self._come_to_end(tp)
        return records

    def _come_to_end(self, tp: TopicPartition) -> None:
        """Report the end together with the last records, once until there are more."""
        if tp not in self._at_end:
            self._at_end.add(tp)
            self._ended.append((*tp, self.positions[tp]))

    def ended(self) -> list[tuple[str, int, int]]:
        ended, self._ended = self._ended, []
        return ended

    def _share(self) -> set[TopicPartition]:
        """Return this member's range assignment: equal partition numbers
        of all topics go together."""
        mine = set()
        for topic in self.topics:
            members = [m for m in self._group.members if topic in m.topics]
            for number in range(self.log.partitions(topic)):
                if members[number * len(members) // self.log.partitions(topic)] is self:
                    mine.add((topic, number))
        return mine

    def _rebalance(self) -> None:
        share = self._share()
        # The group assigns by topic id: a recreated topic is another one.
        ids = {tp: self.log.topic_id(tp[0]) for tp in self.positions}
        leaving = [tp for tp in self.positions if tp not in share or ids[tp] != self._ids[tp]]
        if leaving:
            self.listener.revoked(leaving)
            self._forget(leaving)
        for tp in sorted(share - self.positions.keys()):
            if tp not in self._group.owner:
                self._group.owner[tp] = self
                self.positions[tp] = self._place(tp)

    def _place(self, tp: TopicPartition) -> int:
        """Assign a partition to the listener; return where it is read from."""
        partition, topic_id = self.log.topics[tp[0]][tp[1]], self.log.topic_id(tp[0])
        bounds = partition.start, partition.stable
        self._ids[tp] = topic_id
        if tp not in self._group.committed:
            start = self.listener.assigned(Held(*tp, None, "", *bounds, None, topic_id))
            self._epochs[tp] = Epochs()
            return start
        commit = self._group.commit_of(tp)
        cut = self.log.cut(commit)
        held = Held(*tp, commit.offset, commit.metadata, *bounds, cut, topic_id)
        start = self.listener.assigned(held)
        # A position after a cut is below the commit, so the commit's epoch says nothing about it.
        self._epochs[tp] = (
            Epochs() if cut is not None else Epochs(commit.offset, commit.leader_epoch)
        )
        return start

    def _forget(self, partitions: Iterable[TopicPartition]) -> None:
        for tp in list(partitions):
            self.positions.pop(tp, None)
            self._epochs.pop(tp, None)
            self._ids.pop(tp, None)
            self.paused.discard(tp)
            self._at_end.discard(tp)
            if self._group.owner.get(tp) is self:
                del self._group.owner[tp]

    def commit(self, commits: Sequence[Commit]) -> None:
        for commit in commits:
            # Accepted from any member, even for partitions of others: Kafka checks no more than
            # that.
            if self in self._group.members and len(commit.metadata) <= METADATA_LIMIT:
                self._group.record_commit(self._with_epoch(commit))
            else:
                self.refused += 1

    def _with_epoch(self, commit: Commit) -> Commit:
        epochs = self._epochs.get((commit.topic, commit.partition))
        if epochs is None:
            return commit
        epochs.forget(commit.offset)
        return replace(commit, leader_epoch=epochs.before(commit.offset))

    def commit_now(self, commits: Sequence[Commit]) -> None:
        self.commit(commits)

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        self.paused.update(partitions)

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        """Resume; the end of a resumed partition is reported again."""
        going_on = self.paused.intersection(partitions)
        self.paused -= going_on
        self._at_end -= going_on

    def close(self) -> None:
        if self.positions:
            self.listener.revoked(list(self.positions))
        self.kill()

    def kill(self) -> None:
        """Leave as by SIGKILL: no callback, no commit; the group reassigns the partitions."""
        if self in self._group.members:
            self._group.members.remove(self)
        owned = [tp for tp, owner in self._group.owner.items() if owner is self]
        self._forget({*self.positions, *owned})

    def expel(self) -> None:
        """Remove this live member from the group: its partitions move, and it learns that later."""
        for tp in self.positions:
            self._group.owner.pop(tp, None)
        self._group.members.remove(self)

    def rejoin(self) -> None:
        """Lose everything and join again, as a zombie does at its next heartbeat."""
        lost = list(self.positions)
        self.listener.lost(lost)
        self._forget(lost)
        self._group.members.append(self)
