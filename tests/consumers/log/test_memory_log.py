"""Situations that only the in-memory log can produce: holes, zombies, kills, retention."""

from collections.abc import Sequence

import pytest

from rollcall.consumers.log.memory_log import MemoryLog, MemoryPublisher
from rollcall.consumers.log.memory_source import MemorySource
from rollcall.consumers.log.protocols import Commit, Held, TopicPartition
from rollcall.schemas.errors import JournalGone, TooLarge, Unfit
from rollcall.schemas.messages import Control
from tests.support.rig import InHand, Rig


class Listener:
    def __init__(self) -> None:
        self.assignments: list[Held] = []
        self.gone: list[tuple[str, TopicPartition]] = []

    def assigned(self, held: Held) -> int:
        self.assignments.append(held)
        return held.log_start if held.committed is None else held.committed

    def revoked(self, partitions: Sequence[TopicPartition]) -> None:
        self.gone += [("revoked", tp) for tp in partitions]

    def lost(self, partitions: Sequence[TopicPartition]) -> None:
        self.gone += [("lost", tp) for tp in partitions]


@pytest.fixture
def log() -> MemoryLog:
    log = MemoryLog()
    log.create("t", 2)
    return log


def member(log: MemoryLog) -> tuple[MemorySource, Listener]:
    listener = Listener()
    return log.source("g", ["t"], listener), listener


def values(source: MemorySource) -> list[bytes | None]:
    return [record.value for record in source.poll(0.0)]


def test_holes_take_up_offsets_and_are_never_delivered(log: MemoryLog) -> None:
    log.append("t", None, b"a", 0)
    log.hole("t", 0)
    log.append("t", None, b"b", 0)
    log.hole("t", 0)
    source, _ = member(log)

    records = source.poll(0.0)

    assert [(r.offset, r.value) for r in records] == [(0, b"a"), (2, b"b")]
    assert ("t", 0, 4) in source.ended()


def test_partitions_added_later_are_assigned_too(log: MemoryLog) -> None:
    source, _ = member(log)
    source.poll(0.0)

    log.create("t", 3)
    log.append("t", None, b"new", 2)

    assert values(source) == [b"new"]


def test_partitions_of_a_killed_member_move_without_a_revocation(log: MemoryLog) -> None:
    log.append("t", None, b"a", 0)
    first, told = member(log)
    assert values(first) == [b"a"]

    first.kill()
    second, _ = member(log)

    assert values(second) == [b"a"]
    assert told.gone == []


def test_a_member_that_dies_during_assignment_holds_no_partition(log: MemoryLog) -> None:
    class Dies(Listener):
        def assigned(self, held: Held) -> int:
            raise JournalGone

    source = log.source("g", ["t"], Dies())
    with pytest.raises(JournalGone):
        source.poll(0.0)
    source.kill()
    log.append("t", None, b"a", 0)

    assert values(member(log)[0]) == [b"a"]


def test_a_zombie_keeps_reading_and_its_commits_are_refused(log: MemoryLog) -> None:
    zombie, told = member(log)
    zombie.poll(0.0)
    zombie.expel()
    heir, _ = member(log)
    log.append("t", None, b"a", 0)

    assert values(zombie) == values(heir) == [b"a"]
    zombie.commit([Commit("t", 0, 1, "zombie")])
    assert (zombie.refused, log.group("g").committed) == (1, {})
    heir.commit([Commit("t", 0, 1, "heir")])
    zombie.rejoin()

    assert log.group("g").committed == {("t", 0): (1, "heir")}
    assert [what for what, _ in told.gone] == ["lost", "lost"]
    assert values(zombie) == []
    heir.poll(0.0)
    zombie.poll(0.0)
    assert len(zombie.positions) == len(heir.positions) == 1


def test_a_zombie_that_rejoins_alone_resumes_at_the_commit(log: MemoryLog) -> None:
    log.append("t", None, b"a", 0)
    source, _ = member(log)
    source.poll(0.0)
    source.pause([("t", 0)])

    source.expel()
    source.rejoin()

    assert values(source) == [b"a"]


def test_offsets_removed_by_retention_are_never_skipped_silently(log: MemoryLog) -> None:
    for _ in range(3):
        log.append("t", None, b"a", 0)
    source, _ = member(log)
    source.poll(0.0, most=1)
    reader = log.reader(["t"])

    log.delete_before("t", 0, 2)

    with pytest.raises(Unfit, match="it begins at 2"):
        source.poll(0.0)
    with pytest.raises(Unfit, match="it begins at 2"):
        reader.poll(0.0)
    with pytest.raises(Unfit, match="offset 1 is gone"):
        log.reader(["t"], {("t", 0): 1})


def test_retention_past_the_commit_stops_the_worker_by_name() -> None:
    rig = Rig()
    topic = rig.topics.steps
    for _ in range(4):
        rig.write(topic, "k", Control("pause"))
    rig.log.group("g").committed[topic, 0] = 1, ""
    rig.log.delete_before(topic, 0, 3)

    stopped = rig.loop(InHand(topic), rig.log.publisher(), "g")
    with pytest.raises(JournalGone, match=r"begins at 3, .* 1 "):
        stopped.turn(0.0)
    stopped.source.kill()  # type: ignore[attr-defined]
    told = InHand(topic)
    rig.loop(told, rig.log.publisher(), "g", accept_truncation=True).turn(0.0)

    assert told.seen == [(0, 3)]


def test_a_compacted_topic_ignores_retention_and_keeps_the_last_of_each_key() -> None:
    rig = Rig()
    topic = rig.topics.control
    for key, value in [(b"a", b"1"), (b"b", b"2"), (None, b"3"), (b"a", b"4"), (b"b", None)]:
        rig.log.append(topic, key, value)

    rig.log.delete_before(topic, 0, 4)
    assert len(rig.log.all(topic)) == 5
    rig.log.compact(topic)
    assert [(r.offset, r.value) for r in rig.log.all(topic)] == [(3, b"4"), (4, None)]
    rig.log.compact(topic, tombstones=True)
    assert [r.offset for r in rig.log.all(topic)] == [3]
    assert rig.log.bounds(topic) == {0: (0, 5)}


def test_acks_can_be_withheld(log: MemoryLog) -> None:
    publisher = MemoryPublisher(log)
    publisher.hold_acks = True
    publisher.send("t", "key", b"a")

    publisher.poll()
    assert (publisher.waiting(), publisher.flush(1.0)) == (1, 1)
    publisher.hold_acks = False

    assert publisher.flush(1.0) == 0


def test_dead_letters_may_be_larger_than_the_buried_record() -> None:
    rig = Rig()

    with pytest.raises(TooLarge):
        rig.pen.send("t.control", None, b"x" * 1_500_000)
    rig.pen.send("t.dead.letters", None, b"x" * 1_500_000)

    assert len(rig.log.all("t.dead.letters")) == 1


def test_records_carry_their_write_time() -> None:
    rig = Rig()
    rig.write(rig.topics.control, "", Control("pause"))
    rig.clock.pass_by(2.5)
    rig.write(rig.topics.control, "", Control("resume"))

    first, second = rig.log.all(rig.topics.control)

    assert second.timestamp_ms - first.timestamp_ms == 2500
