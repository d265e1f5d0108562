"""One slow record holds up the commit, but neither the other records nor their memory."""

import random

from hypothesis import example, given, settings
from hypothesis import strategies as st

from rollcall.consumers.log.protocols import Record
from rollcall.consumers.loop.finished_offsets import above_commit, finished_above
from rollcall.consumers.loop.loop import Loop
from rollcall.consumers.loop.partition_progress import PartitionProgress
from rollcall.consumers.loop.role import SPAN_RECORDS, SPAN_THINNED, WorkRole
from tests.support.rig import InHand, Rig, role_of, source_of

TOPIC = "t.control"


def record_at(offset: int) -> Record:
    return Record("t", 0, offset, None, None, 0)


@settings(deadline=None)
@example([("come", 0), ("come", 0), ("finish", 1), ("thin", 0), ("thin", 0)], 0, False)
@given(
    st.lists(st.tuples(st.sampled_from(["come", "finish", "thin", "advance"]), st.integers(0, 99))),
    st.integers(0, 5),
    st.booleans(),
)
def test_thinning_never_changes_the_commit(
    acts: list[tuple[str, int]], base: int, gaps: bool
) -> None:
    progress = PartitionProgress("t", 0, base, base, 0)
    come: list[Record] = []
    offset = base
    for act, number in acts:
        if act == "come":
            offset += 1 + (number % 3 if gaps else 0)
            come.append(record_at(offset - 1))
            progress.taken.append(come[-1])
        elif act == "finish" and come:
            come[number % len(come)].closed = True
        elif act == "thin":
            progress.thin()
        else:
            progress.advance()
        read = finished_above(above_commit(progress), progress.next_offset)
        done = {record.offset for record in come if record.closed}
        open_ = {record.offset for record in come} - done
        assert open_.isdisjoint(read), "nothing that is open is said to be finished"
        assert all(each in read or each < progress.next_offset for each in done)
        assert all(each >= progress.next_offset for each in open_)
    for record in come:
        record.closed = True
    progress.advance()
    assert progress.next_offset == (come[-1].offset + 1 if come else base)
    assert (progress.thinned, len(progress.taken)) == (0, 0)


def test_thousands_of_records_pass_a_slow_one_that_alone_is_repeated(
    rig: Rig,
) -> None:
    class Quick(InHand):
        def full(self, progress: PartitionProgress) -> bool:
            if done := {record.offset for record in self.hand} - {3}:
                self.close(*done)
            return super().full(progress)

    def working() -> tuple[Loop, Quick]:
        loop = rig.loop(Quick(TOPIC), rig.log.publisher(), "g")
        return loop, role_of(loop)

    many = 10 * SPAN_RECORDS
    for _ in range(many):
        rig.order("pause")
    loop, role = working()
    for _ in range(200):
        loop.turn(0.0)

    assert len(role.seen) == many
    progress = loop.partitions[TOPIC, 0]
    assert (progress.next_offset, len(progress.taken)) < (4, 2 * SPAN_RECORDS)
    rig.commit(loop)
    source_of(loop).kill()
    heir, again = working()
    for _ in range(200):
        heir.turn(0.0)
    assert [offset for _, offset in again.seen] == [3]
    again.hand[0].closed = True
    rig.commit(heir)
    assert rig.committed("g", TOPIC) == many


def test_the_number_of_records_that_may_pass_is_bounded() -> None:
    role = WorkRole()
    progress = PartitionProgress("t", 0, 0, 0, 0)
    progress.taken.append(record_at(0))
    progress.thinned_to, progress.thinned = SPAN_THINNED + 2, SPAN_THINNED + 1

    assert role.full(progress)
    progress.taken[0].closed = True
    progress.advance()
    assert not role.full(progress)


def test_metadata_of_passed_records_fits_or_is_cut() -> None:
    dice = random.Random(3)
    slow = set(dice.sample(range(SPAN_THINNED), SPAN_RECORDS))
    progress = PartitionProgress("t", 0, 0, 0, 0)
    for offset in range(SPAN_THINNED):
        record = record_at(offset)
        record.closed = offset not in slow
        progress.taken.append(record)
    progress.advance()
    progress.thin()

    read = finished_above(above_commit(progress), progress.next_offset)

    assert not read & slow
    assert len(read) > SPAN_THINNED // 3
    assert len(progress.taken) <= SPAN_RECORDS


def test_commit_metadata_is_unchanged_by_thinning() -> None:
    progress = PartitionProgress("t", 0, 10, 10, 0)
    for offset in range(10, 20):
        progress.taken.append(record_at(offset))
        progress.taken[-1].closed = offset != 12
    progress.advance()
    before = above_commit(progress)
    progress.thin()

    assert above_commit(progress) == before
