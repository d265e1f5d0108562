"""A restart is given exactly the unconsumed records."""

from time import process_time

from hypothesis import given
from hypothesis import strategies as st

from rollcall.schemas.messages import Consumed
from rollcall.trainer.checkpoints.consumption import Consumption


def test_consumption_is_the_lowest_open_offset_and_consumed_ones_above() -> None:
    consumption = Consumption("t")
    for offset in range(8):
        consumption.delivered(0, offset)
    for offset in (0, 1, 2, 5, 7):
        consumption.consumed(0, offset)

    assert consumption.marks() == (Consumed("t", 0, 3, (5, 7)),)


def test_holes_in_the_log_do_not_hold_back_the_mark() -> None:
    consumption = Consumption("t")
    for offset in (0, 2, 7):
        consumption.delivered(0, offset)
        consumption.consumed(0, offset)

    assert consumption.marks() == (Consumed("t", 0, 8, ()),)


@given(
    st.sets(st.integers(0, 30)).flatmap(
        lambda offsets: st.tuples(
            st.just(offsets),
            st.sets(st.sampled_from(sorted(offsets))) if offsets else st.just(set()),
        )
    )
)
def test_a_restart_redelivers_exactly_the_unconsumed_offsets(
    case: tuple[set[int], set[int]],
) -> None:
    offsets, consumed = case
    before = Consumption("t")
    for offset in sorted(offsets):
        before.delivered(0, offset)
    for offset in consumed:
        before.consumed(0, offset)
    marks = before.marks()
    after = Consumption("t", marks)
    start = marks[0].next_offset if marks else 0
    again = {o for o in sorted(offsets) if o >= start and after.delivered(0, o)}

    assert again == offsets - consumed
    assert after.marks() == marks


def test_offsets_below_the_mark_are_not_redelivered() -> None:
    consumption = Consumption("t", [Consumed("t", 4, 3, (5,))])

    assert [consumption.delivered(4, offset) for offset in (2, 3, 4, 5, 6)] == [
        False, True, True, False, True,
    ]  # fmt: skip


def test_computing_marks_takes_linear_time() -> None:
    consumption = Consumption("t")
    for offset in range(200_000):
        consumption.delivered(0, offset)
    for offset in range(100_000, 200_000):
        consumption.consumed(0, offset)

    began = process_time()
    (mark,) = consumption.marks()

    assert (mark.next_offset, len(mark.above)) == (0, 100_000)
    assert process_time() - began < 5.0  # with a minimum for each of them it is an hour
