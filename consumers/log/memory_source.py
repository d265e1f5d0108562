"""A member of a group of the in-memory log, and the group."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from consumers.log.epochs import UNKNOWN, Epochs
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
        self._epochs: dict[TopicPartition, tuple[int, int]] = {}
        """Of the commit at an offset, the leader epoch that came with it."""

    def take(self, commit: Commit) -> None:
        """Keep a commit in the place of the one before."""
        tp = commit.topic, commit.partition
        self.committed[tp] = commit.offset, commit.metadata
        self._epochs[tp] = commit.offset, commit.leader_epoch

    def commit_of(self, tp: TopicPartition) -> Commit:
        """What was committed."""
        offset, metadata = self.committed[tp]
        at, epoch = self._epochs.get(tp, (-1, UNKNOWN))
        return Commit(*tp, offset, metadata, epoch if at == offset else UNKNOWN)


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
        self._epochs: dict[TopicPartition, Epochs] = {}
        self._ids: dict[TopicPartition, str] = {}
        """Of what is owned, the id of its topic."""
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
        # The group deals by the topics' ids: one that is made anew is another one.
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
        """Tell the listener of a partition; return where it is read from."""
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
            # Of any member, also for what is another's by now: Kafka checks no more than that.
            if self in self._group.members and len(commit.metadata) <= WORD_LIMIT:
                self._group.take(self._with_epoch(commit))
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
