"""The guarantees that the loop requires of every log implementation.

On a real broker a group takes seconds to settle, so everything is waited for: members turn until a
condition holds or the deadline has passed.
"""

import random
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from rollcall.compose.services.embedded import Endpoints
from rollcall.consumers.log.kafka_log import KafkaLog
from rollcall.consumers.log.protocols import Commit, Held, Record, TopicPartition
from rollcall.consumers.log.reading import read_all
from rollcall.consumers.loop.dead_letters import DeadLetters
from rollcall.consumers.loop.loop import Loop
from rollcall.consumers.loop.partition_progress import PartitionProgress
from rollcall.schemas.codec import Codec, LocalRegistry
from rollcall.schemas.errors import (
    DeliveryFailed,
    JournalGone,
    Refused,
    TooLarge,
    TopicsDiffer,
    Unfit,
    WorkFailed,
)
from rollcall.schemas.messages import Control
from rollcall.schemas.topics import Topics
from tests.support.rig import InHand

DEADLINE_S = 30.0
POLL_S = 0.05
Named = Callable[[str], str]


class Member:
    """A member of a group that records its callbacks and records."""

    def __init__(self, log: Any, group: str, topics: Sequence[str]) -> None:
        self.records: list[Record] = []
        self.assignments: list[Held] = []
        self.owned: set[TopicPartition] = set()
        self.came_to_end: dict[TopicPartition, int] = {}
        self.positions: dict[TopicPartition, int] = {}
        """Of what is owned, the next offset; these topics have no holes."""
        self.on_revoked: Callable[[Sequence[TopicPartition]], None] = lambda partitions: None
        self.source = log.source(group, topics, self)

    def assigned(self, held: Held) -> int:
        self.assignments.append(held)
        self.owned.add((held.topic, held.partition))
        start = held.log_start if held.committed is None else held.committed
        self.positions[held.topic, held.partition] = start
        return start

    def revoked(self, partitions: Sequence[TopicPartition]) -> None:
        self.on_revoked(partitions)
        self.owned.difference_update(partitions)

    def lost(self, partitions: Sequence[TopicPartition]) -> None:
        self.owned.difference_update(partitions)

    def turn(self, most: int = 500) -> None:
        records = self.source.poll(POLL_S, most)
        assert len(records) <= most
        for record in records:
            tp = record.topic, record.partition
            assert tp in self.owned
            assert record.offset == self.positions[tp], "a skip or a step back"
            self.positions[tp] += 1
        self.records += records
        for topic, partition, offset in self.source.ended():
            assert offset <= self.positions[topic, partition], "an end before its records"
            self.came_to_end[topic, partition] = offset

    def values(self, partition: int | None = None) -> list[bytes | None]:
        return [r.value for r in self.records if partition in (None, r.partition)]


def until(
    condition: Callable[[], bool], turning: Iterable[Any], deadline_s: float = DEADLINE_S
) -> None:
    """Let all members turn until the condition holds."""
    turning = list(turning)
    end = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < end, f"waited {deadline_s} s in vain"
        for each in turning:
            each() if callable(each) else each.turn()


def fill(log: Any, topic: str, values: Iterable[bytes], partition: int = 0) -> None:
    for value in values:
        log.append(topic, b"key", value, partition)


def numbered(count: int, mark: str = "") -> list[bytes]:
    return [f"{mark}{n}".encode() for n in range(count)]


class TestLog:
    @pytest.fixture(autouse=True)
    def _given(self, log: Any, named: Named) -> Iterable[None]:
        self.log, self.named = log, named
        self.members: list[Member] = []
        yield
        for member in self.members:
            member.source.close()

    def topic(self, partitions: int = 1) -> str:
        name = self.named("topic")
        self.log.create(name, partitions)
        assert self.log.partitions(name) == partitions
        return name

    def member(self, group: str, *topics: str) -> Member:
        self.members.append(Member(self.log, group, topics))
        return self.members[-1]

    def leave(self, member: Member) -> None:
        self.members.remove(member)
        member.source.close()

    # Committing from outside

    def test_outside_commit_is_allowed_only_for_a_group_without_members(self) -> None:
        topic, group = self.topic(), self.named("group")
        fill(self.log, topic, numbered(3))
        member = self.member(group, topic)
        until(lambda: len(member.records) == 3, [member])
        member.source.commit_now([Commit(topic, 0, 2, "1;")])

        with pytest.raises(Refused, match=group):
            self.log.commit_for(group, [Commit(topic, 0, 2, "no")])
        self.leave(member)
        self.log.commit_for(group, [Commit(topic, 0, 2, "a word")])

        assert self.log.commits(group, topic) == {0: Commit(topic, 0, 2, "a word")}
        again = self.member(group, topic)
        until(lambda: len(again.records) == 1, [again])
        assert again.assignments[0].metadata == "a word"

    # Reading in a group

    def test_member_receives_the_records_of_each_partition_in_order(self) -> None:
        topic = self.topic(2)
        fill(self.log, topic, numbered(700, "a"), 0)
        fill(self.log, topic, numbered(5, "b"), 1)

        member = self.member(self.named("group"), topic)
        until(lambda: len(member.records) == 705, [member])

        assert member.values(0) == numbered(700, "a")
        assert member.values(1) == numbered(5, "b")
        offsets = [r.offset for r in member.records if r.partition == 0]
        assert offsets == sorted(set(offsets))

    def test_records_are_read_as_written(self) -> None:
        topic = self.topic()
        publisher = self.log.publisher()
        publisher.send(topic, "a key", b"value", headers=[("h", b"1"), ("h", b"2")])
        publisher.send(topic, None, None)
        publisher.flush(DEADLINE_S)

        member = self.member(self.named("group"), topic)
        until(lambda: len(member.records) == 2, [member])

        full, bare = member.records
        assert (full.key, full.value, full.headers) == (
            b"a key", b"value", [("h", b"1"), ("h", b"2")],
        )  # fmt: skip
        assert (bare.key, bare.value) == (None, None)
        assert not bare.headers
        assert 0 < full.timestamp_ms <= bare.timestamp_ms

    def test_every_group_receives_all_records(self) -> None:
        topic = self.topic()
        fill(self.log, topic, numbered(3))

        members = [self.member(self.named("group"), topic) for _ in range(2)]
        until(lambda: all(len(m.records) == 3 for m in members), members)

        assert members[0].values() == members[1].values()

    def test_assignment_gives_start_and_end_of_the_log(self) -> None:
        topic = self.topic()
        fill(self.log, topic, numbered(4))

        member = self.member(self.named("group"), topic)
        until(lambda: bool(member.assignments), [member])

        held = member.assignments[0]
        assert (held.topic, held.partition, held.log_start, held.log_end) == (topic, 0, 0, 4)
        assert (held.committed, held.metadata) == (None, "")

    def test_one_member_reads_two_topics(self) -> None:
        first, second = self.topic(), self.topic(2)
        fill(self.log, first, [b"one"])
        fill(self.log, second, [b"two"], 1)

        member = self.member(self.named("group"), first, second)
        until(lambda: len(member.records) == 2, [member])

        assert {(r.topic, r.value) for r in member.records} == {(first, b"one"), (second, b"two")}

    def test_end_of_each_partition_is_reported_even_when_empty(self) -> None:
        topic = self.topic(2)
        fill(self.log, topic, numbered(3), 0)

        member = self.member(self.named("group"), topic)
        until(lambda: len(member.came_to_end) == 2, [member])
        assert member.came_to_end == {(topic, 0): 3, (topic, 1): 0}
        assert len(member.records) == 3
        fill(self.log, topic, [b"more"], 1)
        until(lambda: member.came_to_end[topic, 1] == 1, [member])

        assert member.values(1) == [b"more"]

    # Commits

    def test_new_member_starts_at_the_commit_and_receives_its_metadata(self) -> None:
        topic, group = self.topic(), self.named("group")
        fill(self.log, topic, numbered(5))
        first = self.member(group, topic)
        until(lambda: len(first.records) == 5, [first])

        first.source.commit_now([Commit(topic, 0, 3, "1;word")])
        self.leave(first)
        second = self.member(group, topic)
        until(lambda: len(second.records) == 2, [second])

        assert second.values() == [b"3", b"4"]
        assert (second.assignments[0].committed, second.assignments[0].metadata) == (3, "1;word")

    def test_commit_metadata_may_have_at_most_4095_bytes(self) -> None:
        topic, group = self.topic(), self.named("group")
        first = self.member(group, topic)
        until(lambda: bool(first.owned), [first])

        first.source.commit_now([Commit(topic, 0, 0, "x" * 4095)])
        assert first.source.refused == 0
        first.source.commit_now([Commit(topic, 0, 0, "y" * 4096)])
        assert first.source.refused == 1
        self.leave(first)
        second = self.member(group, topic)
        until(lambda: bool(second.assignments), [second])

        assert second.assignments[0].metadata == "x" * 4095

    def test_uncommitted_records_are_read_again(self) -> None:
        topic, group = self.topic(), self.named("group")
        fill(self.log, topic, numbered(3))
        first = self.member(group, topic)
        until(lambda: len(first.records) == 3, [first])

        self.leave(first)
        second = self.member(group, topic)
        until(lambda: len(second.records) == 3, [second])

        assert second.values() == numbered(3)

    def test_commit_without_waiting_is_eventually_stored(self) -> None:
        topic, group = self.topic(), self.named("group")
        fill(self.log, topic, numbered(2))
        first = self.member(group, topic)
        until(lambda: len(first.records) == 2, [first])

        first.source.commit([Commit(topic, 0, 1, "later")])
        first.turn()
        self.leave(first)
        second = self.member(group, topic)
        until(lambda: len(second.records) == 1, [second])

        assert second.values() == [b"1"]

    # Groups that change

    def test_two_members_share_the_partitions(self) -> None:
        topic, group = self.topic(4), self.named("group")
        for partition in range(4):
            fill(self.log, topic, numbered(10, f"{partition}/"), partition)

        both = [self.member(group, topic), self.member(group, topic)]
        until(lambda: [len(m.owned) for m in both] == [2, 2], both)
        for partition in range(4):
            fill(self.log, topic, numbered(10, f"{partition}/more"), partition)
        seen = lambda: {v for m in both for v in m.values()}  # noqa: E731
        until(lambda: len(seen()) == 80, both)

        assert not both[0].owned & both[1].owned

    def test_partitions_of_a_leaving_member_go_to_the_others(self) -> None:
        topic, group = self.topic(2), self.named("group")
        both = [self.member(group, topic), self.member(group, topic)]
        until(lambda: [len(m.owned) for m in both] == [1, 1], both)

        self.leave(both[0])
        fill(self.log, topic, numbered(3), 0)
        fill(self.log, topic, numbered(3), 1)
        until(lambda: len(both[1].records) == 6, [both[1]])

        assert len(both[1].owned) == 2

    def test_old_owner_is_notified_before_a_partition_moves(self) -> None:
        topic, group = self.topic(2), self.named("group")
        first = self.member(group, topic)
        until(lambda: len(first.owned) == 2, [first])
        fill(self.log, topic, numbered(3), 0)
        fill(self.log, topic, numbered(3), 1)
        until(lambda: len(first.records) == 6, [first])

        def commit(partitions: Sequence[TopicPartition]) -> None:
            commits = [Commit(*tp, 2, "from the old owner") for tp in partitions]
            first.source.commit_now(commits)

        first.on_revoked = commit
        second = self.member(group, topic)
        until(lambda: len(second.records) == 1, [first, second])

        assert second.values() == [b"2"]
        assert second.assignments[0].metadata == "from the old owner"
        assert second.owned.isdisjoint(first.owned)

    def test_loop_does_not_commit_work_of_a_moved_partition(self) -> None:
        topic, group, codec = self.topic(2), self.named("group"), Codec(LocalRegistry())
        self.log.create(Topics().dead_letters, 1)
        for partition in (0, 1):
            fill(self.log, topic, [codec.encode(topic, Control("pause"))] * 2, partition)

        def working() -> tuple[Loop, InHand]:
            role = InHand(topic)
            publisher = self.log.publisher()
            letters = DeadLetters(publisher, Topics(), group, time.monotonic, self.log)
            loop = Loop(self.log, role, codec, [publisher], letters)
            return loop, role

        old, held = working()
        until(lambda: len(held.seen) == 4, [lambda: old.turn(POLL_S)])
        new, given = working()
        turning = [lambda: old.turn(POLL_S), lambda: new.turn(POLL_S)]
        until(lambda: len(given.seen) == 2, turning)

        moved = given.seen[0][0]
        held.close()  # too late for the partition that moved
        until(lambda: old.partitions[topic, 1 - moved].committed[0] == 2, turning)
        old.stop(0.0)
        new.source.close()
        third = self.member(group, topic)
        until(lambda: len(third.assignments) == 2, [third])

        starts = {held.partition: held.committed for held in third.assignments}
        assert starts[1 - moved] == 2
        assert starts[moved] in (None, 0)

    # Backpressure

    def test_paused_partition_gives_no_records_until_resumed(self) -> None:
        topic, group = self.topic(2), self.named("group")
        member = self.member(group, topic)
        fill(self.log, topic, [b"before"], 0)
        until(lambda: len(member.records) == 1, [member])

        member.source.pause([(topic, 0)])
        fill(self.log, topic, numbered(3), 0)
        fill(self.log, topic, [b"other"], 1)
        until(lambda: b"other" in member.values(), [member])
        for _ in range(5):
            member.turn()
        assert member.values(0) == [b"before"]
        member.source.resume([(topic, 0)])
        until(lambda: len(member.records) == 5, [member])

        assert member.values(0) == [b"before", *numbered(3)]

    def test_paused_partition_gives_records_after_it_was_lost_and_returned(self) -> None:
        topic, group = self.topic(2), self.named("group")
        first = self.member(group, topic)
        fill(self.log, topic, [b"before"], 0)
        fill(self.log, topic, [b"before"], 1)
        until(lambda: len(first.records) == 2, [first])

        first.source.pause([(topic, 0), (topic, 1)])
        second = self.member(group, topic)
        until(lambda: bool(first.owned and second.owned), [first, second])
        moved = next(iter(second.owned))
        self.leave(second)
        until(lambda: len(first.owned) == 2, [first])
        fill(self.log, topic, [b"after"], moved[1])
        until(lambda: b"after" in first.values(), [first])

        assert b"after" not in first.values(1 - moved[1])

    # What happens meanwhile

    def test_end_is_reported_with_the_last_records_or_after_them(self) -> None:
        topic = self.topic()
        fill(self.log, topic, numbered(7))

        member = self.member(self.named("group"), topic)
        until(lambda: member.came_to_end.get((topic, 0)) == 7, [lambda: member.turn(most=3)])

        assert member.values() == numbered(7)

    def test_end_is_reported_again_after_a_pause(self) -> None:
        topic = self.topic()
        fill(self.log, topic, numbered(3))
        member = self.member(self.named("group"), topic)
        until(lambda: (topic, 0) in member.came_to_end, [member])

        member.source.pause([(topic, 0)])
        member.turn()
        member.came_to_end.clear()
        member.source.resume([(topic, 0)])
        until(lambda: (topic, 0) in member.came_to_end, [member])

        assert (member.came_to_end, len(member.records)) == ({(topic, 0): 3}, 3)

    def test_pause_during_delivery_loses_and_repeats_no_records(self) -> None:
        topic = self.topic()
        fill(self.log, topic, numbered(900))
        member = self.member(self.named("group"), topic)

        def stutter() -> None:
            before = len(member.records)
            came = lambda: len(member.records) > before or member.came_to_end  # noqa: E731
            until(lambda: bool(came()), [lambda: member.turn(most=70)])
            member.source.pause(member.owned)
            before = len(member.records)
            member.turn(most=70)
            assert len(member.records) == before
            member.source.resume(member.owned)

        until(lambda: member.came_to_end.get((topic, 0)) == 900, [stutter])

        assert member.values() == numbered(900)

    def test_pause_just_after_assignment_holds_back_further_records(self) -> None:
        topic = self.topic()
        fill(self.log, topic, numbered(300))
        member = self.member(self.named("group"), topic)
        until(lambda: bool(member.owned), [lambda: member.turn(most=20)])

        member.source.pause(member.owned)
        until(lambda: bool(member.records), [lambda: member.turn(most=20)])
        given = len(member.records)
        for _ in range(10):
            member.turn(most=20)
        assert len(member.records) == given
        member.source.resume(member.owned)
        until(lambda: len(member.records) == 300, [member])

        assert member.values() == numbered(300)

    def test_moved_partition_with_buffered_records_is_read_from_its_commit(self) -> None:
        topic, group = self.topic(2), self.named("group")
        for partition in (0, 1):
            fill(self.log, topic, numbered(200), partition)
        first = self.member(group, topic)
        until(lambda: all(first.values(n) for n in (0, 1)), [lambda: first.turn(most=3)])
        first.on_revoked = lambda tps: first.source.commit_now([Commit(*tp, 2, "") for tp in tps])

        second = self.member(group, topic)
        until(lambda: len(second.records) == 198, [lambda: first.turn(most=3), second])

        moved = second.records[0].partition
        assert second.values() == numbered(200)[2:]
        assert first.values(1 - moved) == numbered(200)[: len(first.values(1 - moved))]
        until(lambda: second.came_to_end.get((topic, moved)) == 200, [second])

    def test_returning_partition_is_read_from_its_commit_to_its_end(self) -> None:
        topic, group = self.topic(2), self.named("group")
        for partition in (0, 1):
            fill(self.log, topic, numbered(5), partition)
        first = self.member(group, topic)
        until(lambda: len(first.came_to_end) == 2, [first])
        second = self.member(group, topic)
        until(lambda: len(second.came_to_end) == 1, [first, second])
        (moved,) = second.came_to_end
        first.came_to_end.clear()

        second.source.commit_now([Commit(*moved, 3, "")])
        self.leave(second)
        until(lambda: moved in first.came_to_end, [first])

        assert first.came_to_end[moved] == 5
        assert first.values(moved[1]) == [*numbered(5), b"3", b"4"]
        assert first.values(1 - moved[1]) == numbered(5)

    def test_member_can_commit_for_a_partition_it_does_not_own(self) -> None:
        """So a member has to check its ownership before it commits."""
        topic, group = self.topic(2), self.named("group")
        both = [self.member(group, topic), self.member(group, topic)]
        until(lambda: [len(m.owned) for m in both] == [1, 1], both)
        fill(self.log, topic, numbered(3))

        other = next(m for m in both if (topic, 0) not in m.owned)
        other.source.commit_now([Commit(topic, 0, 2, "not mine")])

        assert (other.source.refused, self.log.committed(group, topic)) == (0, {0: 2})

    def test_joining_leaving_and_pausing_members_skip_no_records(self) -> None:
        topic, group, dice = self.topic(3), self.named("group"), Random(7)
        written: set[tuple[int, bytes]] = set()
        members = [self.member(group, topic)]
        seen = lambda: {(r.partition, r.value) for m in known for r in m.records}  # noqa: E731
        known = list(members)
        for step in range(12):
            for partition in range(3):
                values = numbered(dice.randrange(40), f"{step}/")
                fill(self.log, topic, values, partition)
                written |= {(partition, value) for value in values}
            paused = dice.sample(sorted(members[0].owned), len(members[0].owned) // 2)
            members[0].source.pause(paused)
            if step % 4 == 1:
                members.append(self.member(group, topic))
                known.append(members[-1])
            if step % 4 == 3:
                self.leave(members.pop(dice.randrange(len(members))))
            for member in members:
                member.turn(most=dice.choice((1, 20, 500)))
            members[0].source.resume(paused)

        until(lambda: seen() >= written, members)

        assert seen() == written

    # Writing

    def test_record_goes_to_the_named_partition(self) -> None:
        topic = self.topic(3)
        publisher = self.log.publisher()
        for partition in (2, 0, 2):
            publisher.send(topic, "one key", str(partition).encode(), partition=partition)
        publisher.flush(DEADLINE_S)

        member = self.member(self.named("group"), topic)
        until(lambda: len(member.records) == 3, [member])

        assert [len(member.values(n)) for n in range(3)] == [1, 0, 2]

    @pytest.mark.parametrize("bulk", [False, True])
    def test_records_with_one_key_stay_in_one_partition_in_order(self, bulk: bool) -> None:
        topic = self.topic(3)
        publisher = self.log.publisher(bulk=bulk)
        for n in range(20):
            publisher.send(topic, "a key", str(n).encode())
        publisher.flush(DEADLINE_S)

        member = self.member(self.named("group"), topic)
        until(lambda: len(member.records) == 20, [member])

        assert len({record.partition for record in member.records}) == 1
        assert member.values() == numbered(20)

    def test_partition_of_a_key_is_known_without_writing(self) -> None:
        topic = self.topic(3)
        publisher = self.log.publisher()
        for number in range(20):
            publisher.send(topic, f"k{number}", b"v")
        assert publisher.flush(DEADLINE_S) == 0

        for record in read_all(self.log, [topic]):
            assert record.partition == self.log.partition_of(topic, record.key)

    def test_acks_are_counted_when_the_publisher_polls(self) -> None:
        topic, publisher = self.topic(), self.log.publisher()
        cause = Record("t", 0, 0, None, None, 0)
        cause.closed = True

        publisher.send(topic, None, b"1", cause=cause)
        publisher.send(topic, None, b"2", cause=cause)
        publisher.send(topic, None, b"3")
        assert (cause.sent, cause.acked, cause.finished()) == (2, 0, False)
        assert publisher.waiting() == 3
        until(lambda: publisher.waiting() == 0, [publisher.poll])

        assert (cause.acked, cause.finished()) == (2, True)

    def test_ack_gives_the_append_time(self) -> None:
        topic, publisher = self.topic(), self.log.publisher()
        assert publisher.acked_ms == 0

        publisher.send(topic, None, b"1")
        publisher.flush(DEADLINE_S)

        (record,) = read_all(self.log, [topic])
        assert publisher.acked_ms == record.timestamp_ms

    def test_flush_waits_for_the_acks(self) -> None:
        topic, publisher = self.topic(), self.log.publisher(bulk=True)
        cause = Record("t", 0, 0, None, None, 0)

        publisher.send(topic, None, b"1", cause=cause)

        assert publisher.flush(DEADLINE_S) == 0
        assert (cause.acked, publisher.waiting()) == (1, 0)

    def test_too_large_value_is_refused_at_once(self) -> None:
        topic, publisher = self.topic(), self.log.publisher()
        cause = Record("t", 0, 0, None, None, 0)

        with pytest.raises(TooLarge, match="above the limit"):
            publisher.send(topic, None, b"x" * 4 * 1024 * 1024, cause=cause)

        assert (cause.sent, publisher.waiting()) == (0, 0)

    def test_records_the_topic_no_longer_accepts_are_returned(self) -> None:
        topic, publisher, told = self.topic(), self.log.publisher(), list[str]()
        cause = Record("t", 0, 0, None, None, 0)
        cause.closed = True
        publisher.send(topic, None, b"x" * 40_000, cause=cause)
        assert publisher.flush(DEADLINE_S) == 0
        self.log.limit(topic, 20_000)

        def instead(error: WorkFailed) -> None:
            told.append(error.code)
            publisher.send(topic, None, b"instead", cause=cause)

        for n in range(50):  # together more than a batch may be
            publisher.send(topic, None, str(n).encode() + b" " * 1000, cause=cause)
        publisher.send(topic, None, random.randbytes(40_000), cause=cause, refused=instead)
        until(lambda: publisher.waiting() == 0, [publisher.poll])

        member = self.member(self.named("group"), topic)
        until(lambda: len(member.records) == 52, [member])
        assert told == ["too_large"]
        assert {int(v.split()[0]) for v in member.values()[1:] if v != b"instead"} == {*range(50)}
        assert (cause.sent, cause.acked) == (53, 53)

    def test_record_for_a_deleted_topic_is_returned(self) -> None:
        topic, publisher, told = self.topic(), self.log.publisher(), list[str]()
        publisher.send(topic, None, b"1")
        assert publisher.flush(DEADLINE_S) == 0

        self.log.delete(topic)
        publisher.send(topic, None, b"2", refused=lambda error: told.append(error.code))
        until(lambda: bool(told), [publisher.poll], deadline_s=90.0)
        assert (told, publisher.waiting()) == (["no_topic"], 0)
        publisher.send(topic, None, b"3")

        with pytest.raises(DeliveryFailed, match=f"{topic} cannot be written to"):
            until(lambda: False, [publisher.poll], deadline_s=90.0)

    # Readers of everything

    def test_reader_receives_every_partition_from_the_beginning(self) -> None:
        topic, other = self.topic(3), self.topic()
        for partition in range(3):
            fill(self.log, topic, numbered(2, f"{partition}/"), partition)
        fill(self.log, other, [b"other"])

        reader = self.log.reader([topic, other])
        read: list[Record] = []
        assert not reader.caught_up()
        until(lambda: bool(reader.caught_up()), [lambda: read.extend(reader.poll(POLL_S))])
        reader.close()

        assert len(read) == 7
        assert [r.value for r in read if r.partition == 1] == [b"1/0", b"1/1"]

    def test_reader_starts_at_the_given_offsets(self) -> None:
        topic = self.topic(2)
        fill(self.log, topic, numbered(4), 0)
        fill(self.log, topic, numbered(4), 1)

        reader = self.log.reader([topic], {(topic, 0): 3})
        read: list[Record] = []
        until(lambda: bool(reader.caught_up()), [lambda: read.extend(reader.poll(POLL_S))])
        reader.close()

        assert [r.value for r in read if r.partition == 0] == [b"3"]
        assert [r.value for r in read if r.partition == 1] == numbered(4)

    def test_reader_from_the_end_receives_only_new_records(self) -> None:
        topic = self.topic(2)
        fill(self.log, topic, numbered(4), 0)

        reader = self.log.reader([topic], from_end=True)
        read: list[Record] = []
        assert reader.caught_up()
        fill(self.log, topic, [b"new"], 0)
        fill(self.log, topic, [b"newer"], 1)
        until(lambda: len(read) == 2, [lambda: read.extend(reader.poll(POLL_S))])
        reader.close()

        assert {r.value for r in read} == {b"new", b"newer"}

    @pytest.mark.parametrize("from_end", [False, True])
    def test_reader_reads_partitions_added_while_it_reads(self, from_end: bool) -> None:
        topic = self.topic(1)
        reader = self.log.reader([topic], from_end=from_end)
        read: list[Record] = []
        until(lambda: bool(reader.caught_up()), [lambda: read.extend(reader.poll(POLL_S))])

        self.log.create(topic, 3)
        for partition in range(3):
            fill(self.log, topic, numbered(2, f"{partition}/"), partition)
        until(lambda: len(read) >= 6, [lambda: read.extend(reader.poll(POLL_S))])
        reader.close()

        assert [r.value for r in read if r.partition == 2] == [b"2/0", b"2/1"]
        assert len(read) == 6

    def test_reader_of_empty_topics_has_caught_up(self) -> None:
        reader = self.log.reader([self.topic(2)])

        assert reader.caught_up()
        reader.close()

    def test_readers_do_not_disturb_each_other_or_a_group(self) -> None:
        topic, group = self.topic(), self.named("group")
        fill(self.log, topic, numbered(2))

        readers = [self.log.reader([topic]) for _ in range(2)]
        member = self.member(group, topic)
        until(lambda: len(member.records) == 2, [member])

        for reader in readers:
            read: list[Record] = []
            until(lambda read=read: len(read) == 2, [
                lambda reader=reader, read=read: read.extend(reader.poll(POLL_S))
            ])  # fmt: skip
            assert [record.value for record in read] == numbered(2)
            reader.close()

    # Looking

    def test_offset_for_a_time_is_the_first_record_not_older(self) -> None:
        topic = self.topic(2)
        for value in (b"first", b"second"):
            fill(self.log, topic, [value], 0)
            written_s = time.time()
            until(lambda since=written_s: time.time() > since + 0.01, [])
        reader, read = self.log.reader([topic]), list[Record]()
        until(lambda: len(read) == 2, [lambda: read.extend(reader.poll(POLL_S))])
        reader.close()
        first, second = (record.timestamp_ms for record in read)

        def at(time_ms: int) -> list[int]:
            found = self.log.offsets_for_times([topic], time_ms)
            return [found[topic, 0], found[topic, 1]]

        assert (at(0), at(first), at(first + 1)) == ([0, 0], [0, 0], [1, 0])
        assert (at(second), at(second + 1), at(1 << 50)) == ([1, 0], [2, 0], [2, 0])

    def test_commits_groups_and_topics_are_visible_from_outside(self) -> None:
        topic, group = self.topic(2), self.named("group")
        fill(self.log, topic, numbered(3))
        member = self.member(group, topic)
        until(lambda: len(member.owned) == 2, [member])

        before = self.log.committed(group, topic)
        member.source.commit_now([Commit(topic, 0, 2, "1;word")])

        assert (before, self.log.committed(group, topic)) == ({}, {0: 2})
        assert self.log.committed(self.named("nobody"), topic) == {}
        assert topic in self.log.topic_names()
        assert group in self.log.group_names()

    # What was there and is gone

    def test_commit_gives_the_leader_epoch_of_its_last_record(self) -> None:
        topic, group = self.topic(), self.named("group")
        fill(self.log, topic, numbered(3))
        member = self.member(group, topic)
        until(lambda: len(member.records) == 3, [member])
        member.source.commit_now([Commit(topic, 0, 2, "")])
        self.leave(member)

        commit = self.log.commits(group, topic)[0]

        assert commit.leader_epoch == member.records[1].leader_epoch >= 0
        assert self.log.cuts([commit]) == {}
        heir = self.member(group, topic)
        until(lambda: len(heir.records) == 1, [heir])
        assert (heir.assignments[0].cut, heir.records[0].offset) == (None, 2)
        assert heir.assignments[0].topic_id == self.log.topic_id(topic)

    @pytest.mark.parametrize("committed", [41, 100])
    def test_commit_beyond_the_end_is_reported_with_the_log_end(self, committed: int) -> None:
        topic, group = self.topic(), self.named("group")
        fill(self.log, topic, numbered(40))
        commit = Commit(topic, 0, committed, "")
        self.log.commit_for(group, [commit])

        assert self.log.cuts([commit]) == {(topic, 0): 40}
        told: list[Held] = []

        class FromTheCut(InHand):
            def assigned(self, held: Held, progress: PartitionProgress) -> int:
                told.append(held)
                return progress.next_offset

        codec = Codec(LocalRegistry())
        publisher = self.log.publisher()
        self.log.create(Topics().dead_letters, 1)
        letters = DeadLetters(publisher, Topics(), group, time.monotonic, self.log)
        loop = Loop(self.log, FromTheCut(topic), codec, [publisher], letters)
        with pytest.raises(JournalGone, match=f"{committed} is committed, but from 40 on"):
            until(lambda: False, [lambda: loop.turn(POLL_S)])
        loop.source.close()
        assert told == []

        accepts = Loop(
            self.log, FromTheCut(topic), codec, [publisher], letters, accept_truncation=True
        )
        until(lambda: bool(told), [lambda: accepts.turn(POLL_S)])
        accepts.commits.hasten()
        until(lambda: self.log.committed(group, topic) == {0: 40}, [lambda: accepts.turn(POLL_S)])
        accepts.source.close()
        assert (told[0].committed, told[0].metadata) == (40, "")

    @pytest.mark.parametrize("later", [0, 40])
    def test_member_of_a_recreated_topic_is_reassigned_or_ends_by_name(self, later: int) -> None:
        topic, group = self.topic(), self.named("group")
        fill(self.log, topic, numbered(20))
        member = self.member(group, topic)
        until(lambda: len(member.records) == 20, [member])
        member.source.commit_now([Commit(topic, 0, 20, "")])

        self.log.recreate(topic)
        fill(self.log, topic, numbered(later, "new"))

        stopped = ""
        try:
            until(lambda: len(member.assignments) == 2, [member])
            # Until the group says so, it may have read on where it stood.
            until(lambda: not later or member.values()[-later:] == numbered(later, "new"), [member])
        except JournalGone as error:
            stopped = str(error)
        if stopped:
            assert topic in stopped
        else:
            assert member.assignments[1].topic_id == self.log.topic_id(topic)

    @pytest.mark.parametrize("read", [0, 3])
    @pytest.mark.parametrize("later", [0, 2, 6])
    def test_reader_of_a_recreated_topic_ends_by_name(self, read: int, later: int) -> None:
        topic = self.topic()
        fill(self.log, topic, numbered(read))
        reader = self.log.reader([topic])
        until(reader.caught_up, [lambda: reader.poll(POLL_S)])

        self.log.recreate(topic)
        fill(self.log, topic, numbered(later, "new"))

        with pytest.raises(Unfit, match=topic):
            until(lambda: False, [lambda: reader.poll(POLL_S)])
        reader.close()
        assert self.read_to_the_end(topic) == numbered(later, "new")

    def test_reader_refuses_an_offset_beyond_the_end(self) -> None:
        topic = self.topic()
        fill(self.log, topic, numbered(3))

        with pytest.raises(Unfit, match=f"{topic} 0 ends at 3; offset 4 is not there"):
            self.log.reader([topic], {(topic, 0): 4})

    # Transactions of others

    def test_open_transaction_holds_readers_back_and_is_reported(self) -> None:
        topic, group = self.topic(), self.named("group")
        fill(self.log, topic, numbered(3))
        began_ms = int(time.time() * 1000)
        opened = self.log.transaction(topic, [b"foreign", b"more"])
        fill(self.log, topic, numbered(2, "behind"))
        member = self.member(group, topic)

        until(lambda: member.came_to_end == {(topic, 0): 3}, [member])

        assert member.values() == numbered(3)
        assert self.log.bounds(topic) == {0: (0, 3)}
        told = self.log.open_transactions([topic])
        assert [(t.topic, t.partition, t.first, t.end) for t in told] == [(topic, 0, 3, 7)]
        assert abs(told[0].since_ms - began_ms) < 60_000
        assert member.assignments[0].log_end == 3
        assert self.read_to_the_end(topic) == numbered(3)

        opened.commit()
        self.ends(topic, 8)
        assert self.read_to_the_end(topic) == [
            *numbered(3),
            b"foreign",
            b"more",
            *numbered(2, "behind"),
        ]
        read_on = lambda: member.records.extend(member.source.poll(POLL_S))  # noqa: E731
        until(lambda: len(member.records) == 7, [read_on])
        assert self.log.open_transactions([topic]) == []

    @pytest.mark.parametrize("aborted", [True, False])
    @pytest.mark.parametrize(("before", "after"), [(0, 0), (2, 0), (0, 2), (2, 2)])
    def test_readers_catch_up_after_ended_transactions(
        self, aborted: bool, before: int, after: int
    ) -> None:
        topic = self.topic()
        fill(self.log, topic, numbered(before))
        ended = self.log.transaction(topic, [b"a", b"b"])
        (ended.abort if aborted else ended.commit)()
        fill(self.log, topic, numbered(after, "after"))
        self.ends(topic, before + 3 + after)

        between = [] if aborted else [b"a", b"b"]
        assert self.read_to_the_end(topic) == [
            *numbered(before),
            *between,
            *numbered(after, "after"),
        ]
        assert self.log.open_transactions([topic]) == []

    def test_reader_of_a_topic_emptied_by_retention_has_caught_up(self) -> None:
        topic = self.topic()
        fill(self.log, topic, numbered(3))
        self.log.delete_before(topic, 0, 3)

        assert self.read_to_the_end(topic) == []
        assert self.log.bounds(topic) == {0: (3, 3)}

    def read_to_the_end(self, topic: str) -> list[bytes | None]:
        return [record.value for record in read_all(self.log, [topic])]

    def ends(self, topic: str, offset: int) -> None:
        """Wait until a marker is written: that happens after its transaction has ended."""
        until(lambda: self.log.bounds(topic)[0][1] == offset, [])

    # What is not there

    def test_missing_topic_is_named(self) -> None:
        absent = self.named("absent")

        for ask in (
            lambda: self.log.partitions(absent),
            lambda: self.log.reader([absent]),
            lambda: self.log.source(self.named("group"), [absent], PartitionProgress),
        ):
            with pytest.raises(TopicsDiffer, match=absent):
                ask()

    def test_topic_has_the_given_number_of_partitions(self) -> None:
        assert self.log.partitions(self.topic(3)) == 3

    def test_every_partition_reports_its_start_and_end(self) -> None:
        topic = self.topic(2)
        assert self.log.bounds(topic) == {0: (0, 0), 1: (0, 0)}

        fill(self.log, topic, numbered(3))
        self.log.delete_before(topic, 0, 2)

        assert self.log.bounds(topic) == {0: (2, 3), 1: (0, 0)}

    def test_end_of_each_partition_is_a_valid_position(self) -> None:
        topic = self.topic(2)
        fill(self.log, topic, numbered(3))

        ends = self.log.ends(topic)

        assert [(end.partition, end.offset) for end in ends] == [(0, 3), (1, 0)]
        assert all(end.leader_epoch >= 0 for end in ends)
        assert self.log.cuts(ends) == {}
        assert self.log.cuts([replace(ends[0], offset=4)]) == {(topic, 0): 3}

    def test_recreated_topic_has_another_id_and_no_commits(self) -> None:
        topic, group = self.topic(), self.named("group")
        fill(self.log, topic, numbered(2))
        member = self.member(group, topic)
        until(lambda: len(member.records) == 2, [member])
        member.source.commit_now([Commit(topic, 0, 2, "word")])
        self.leave(member)
        before = self.log.topic_id(topic)
        assert self.log.topic_id(topic) == before

        self.log.recreate(topic)

        assert self.log.topic_id(topic) != before
        heir = self.member(group, topic)
        until(lambda: heir.assignments, [heir])
        assert (heir.assignments[0].committed, heir.assignments[0].metadata) == (None, "")

    def test_role_that_needs_deleted_records_stops_its_worker(self) -> None:
        topic = self.topic()

        class NeedsMore(InHand):
            def assigned(self, held: Held, progress: PartitionProgress) -> int:
                return held.log_start - 1

        codec = Codec(LocalRegistry())
        publisher = self.log.publisher()
        self.log.create(Topics().dead_letters, 1)
        group = self.named("group")
        letters = DeadLetters(publisher, Topics(), group, time.monotonic, self.log)
        loop = Loop(self.log, NeedsMore(topic), codec, [publisher], letters)

        with pytest.raises(JournalGone, match="retention has passed it"):
            until(lambda: False, [lambda: loop.turn(POLL_S)])


@pytest.mark.broker
def test_member_rejected_by_the_broker_ends_its_process(
    kafka_log: Any, services: Endpoints, named: Named
) -> None:
    # Given an assignor of which no broker knows: the client calls that error fatal
    topic = named("t")
    kafka_log.create(topic, 1)
    settings = {"bootstrap.servers": services.bootstrap_servers}
    log = KafkaLog({**settings, "group.remote.assignor": "nobody-knows-it"})
    member = Member(log, named("g"), [topic])

    with pytest.raises(Unfit, match="as a member failed"):
        until(lambda: False, [member])

    log.close()
