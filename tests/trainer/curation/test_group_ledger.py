"""Every member of a published draw is exactly one of running, held or ended."""

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollcall.schemas.ids import group_id, request_id
from rollcall.trainer.curation.drawn_groups import LedgerState
from rollcall.trainer.curation.group_ledger import GroupLedger
from rollcall.trainer.curation.named_rollouts import NAMES

SIZE = 3
DRAWN = 6
MEMBERS = st.tuples(st.integers(0, DRAWN - 1), st.integers(0, SIZE - 1))
WHAT = st.sampled_from(["come", "leave", "restart"])


def accounts(draws: int = DRAWN, book: LedgerState | None = None) -> GroupLedger:
    made = GroupLedger("run", SIZE, book)
    made.published(draws - 1)
    return made


def come(to: GroupLedger, draw: int, member: int) -> str:
    return to.enter(group_id("run", draw), request_id("run", draw, member), 1)


def end(of: GroupLedger, draw: int, member: int) -> None:
    of.end(group_id("run", draw), request_id("run", draw, member), 1)


def end_all(of: GroupLedger, draw: int) -> None:
    """Let all members of a draw come, and end."""
    for member in range(SIZE):
        come(of, draw, member)
    of.leave(group_id("run", draw))
    for member in range(SIZE):
        end(of, draw, member)


@dataclass
class Model:
    """The same accounts as sets of pairs."""

    held: set[tuple[int, int]] = field(default_factory=set)
    ended: set[tuple[int, int]] = field(default_factory=set)
    left: set[int] = field(default_factory=set)

    def come(self, seat: tuple[int, int]) -> str:
        if seat in self.held | self.ended:
            return "duplicate"
        (self.ended if seat[0] in self.left else self.held).add(seat)
        return "late" if seat[0] in self.left else ""


@given(st.lists(st.tuples(WHAT, MEMBERS), max_size=60))
def test_accounts_agree_with_a_set_model_under_any_schedule(
    schedule: list[tuple[str, tuple[int, int]]],
) -> None:
    found, model = accounts(), Model()

    for what, seat in schedule:
        if what == "come":
            assert come(found, *seat) == model.come(seat)
        elif what == "leave":
            model.left.add(seat[0])
            found.leave(group_id("run", seat[0]))
            for held in sorted(s for s in model.held if s[0] == seat[0]):
                end(found, *held)
                model.held.remove(held)
                model.ended.add(held)
        else:
            found = GroupLedger("run", SIZE, found.book())
            model.held = set()
        running = DRAWN * SIZE - len(model.ended) - len(model.held)
        assert (found.running(), found.held(), found.ended()) == (
            running,
            len(model.held),
            len(model.ended),
        )


def test_an_ended_member_is_a_duplicate_however_old_it_is() -> None:
    found = accounts(draws=20_000)
    for draw in range(20_000):
        for member in range(SIZE):
            come(found, draw, member)
        found.leave(group_id("run", draw))
        for member in range(SIZE):
            end(found, draw, member)

    again = GroupLedger("run", SIZE, found.book())

    assert {come(again, draw, 1) for draw in range(0, 20_000, 100)} == {"duplicate"}
    assert (again.low, again.running(), again.book().ended) == (20_000, 0, b"")


def test_the_book_grows_with_unfinished_members_only() -> None:
    found = accounts(draws=8_000)
    for draw in range(1, 8_000):
        end_all(found, draw)

    one_missing = found.book()
    end_all(found, 0)

    assert len(one_missing.ended) == 8_000 * SIZE / 8
    assert found.book() == LedgerState(8_000, 8_000)


def test_a_straggler_of_a_departed_group_is_late_and_not_held() -> None:
    found = accounts(draws=5_000)
    for draw in range(5_000):
        for member in range(SIZE - (draw == 0)):
            come(found, draw, member)
        found.leave(group_id("run", draw))
        for member in range(SIZE - (draw == 0)):
            end(found, draw, member)

    again = GroupLedger("run", SIZE, found.book())

    assert (again.low, again.running(), come(again, 0, 2)) == (0, 1, "late")
    assert (again.low, again.running(), again.held()) == (5_000, 0, 0)


@pytest.mark.parametrize(
    ("group", "rollout_id"),
    [
        ("run/1", "somebody's"),
        ("run/1", request_id("run", 2, 0)),
        (f"run/{DRAWN}", request_id("run", DRAWN, 0)),
    ],
)
def test_a_rollout_that_was_never_drawn_is_refused(group: str, rollout_id: str) -> None:
    found = accounts()

    assert found.enter(group, rollout_id, 1) == "not_drawn"
    assert (found.held(), found.running()) == (0, DRAWN * SIZE)


def test_a_group_not_drawn_by_admission_is_tracked_by_name_only() -> None:
    found = accounts()
    assert [found.enter("mine", "a", 1), found.enter("mine", "a", 1)] == ["", "duplicate"]
    assert (found.held(), found.others(), found.running()) == (0, 1, DRAWN * SIZE)
    found.leave("mine")
    found.end("mine", "a", 1)

    again = GroupLedger("run", SIZE, found.book())
    again.know(found.names())

    assert [again.enter("mine", "a", 1), again.enter("mine", "b", 1)] == ["duplicate", "late"]
    assert again.names() == found.names()
    again.know(str(number) for number in range(2 * NAMES))
    assert len(again.names()) == NAMES


def test_giving_up_ends_running_members_and_keeps_held_ones() -> None:
    found = accounts(draws=2)
    for member in range(SIZE):
        come(found, 1, member)

    assert found.lose() == SIZE

    assert (found.running(), found.held(), found.low) == (0, SIZE, 1)
    assert come(found, 0, 0) == "duplicate"


def test_a_member_that_is_not_held_cannot_end() -> None:
    with pytest.raises(ValueError, match="is not held"):
        end(accounts(), 0, 0)
