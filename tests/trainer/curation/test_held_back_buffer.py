"""A buffer that delays a step keeps reading, and its deadline follows a running clock."""

from dataclasses import replace

from rollcall.schemas.ids import group_id, request_id
from rollcall.schemas.messages import ScoredTrajectory
from rollcall.trainer.config.curation import Curation
from rollcall.trainer.config.tables import Groups, Staleness
from rollcall.trainer.curation.buffer import Buffer
from rollcall.trainer.curation.group_ledger import GroupLedger
from tests.support.scored_trajectories import scored

CURATION = Curation(
    "run",
    "policy",
    Groups(per_step=1, capacity=2),
    Staleness(bound=1, on_stale="wait", wait_s=60.0),
    needs_group=False,
)


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def record(draw: int, member: int, version: int, ended_ms: int) -> ScoredTrajectory:
    made = scored(
        request_id("run", draw, member),
        1.0,
        version=version,
        group=group_id("run", draw),
        group_size=2,
    )
    return replace(made, trajectory=replace(made.trajectory, ended_ms=ended_ms))


def held_back(clock: Clock) -> Buffer:
    """Two whole groups of version 1, while one of version 0 is at work."""
    accounts = GroupLedger("run", 2)
    buffer = Buffer(CURATION, accounts, clock=clock)
    for draw, version in ((0, 0), (1, 1), (2, 1)):
        accounts.published(draw, None, version)
    for offset, (draw, member) in enumerate((d, m) for d in (1, 2) for m in (0, 1)):
        buffer.offer(record(draw, member, 1, 1_000 + offset), 0, offset)
    assert buffer.take(2, 1) is None
    return buffer


def test_a_full_buffer_that_delays_a_step_is_not_full() -> None:
    buffer = held_back(Clock())

    assert buffer.ready_groups() == 2
    assert not buffer.full()
    for member in (0, 1):
        buffer.offer(record(0, member, 0, 2_000), 0, 10 + member)
    assert buffer.take(2, 1) is not None
    assert buffer.ready_groups() == 1


def test_the_deadline_of_a_delayed_step_passes_without_new_records() -> None:
    clock = Clock()
    buffer = held_back(clock)

    clock.now += 59.0
    assert buffer.take(2, 1) is None
    clock.now += 1.5
    assert buffer.take(2, 1) is not None


def test_a_full_buffer_without_a_delayed_step_is_full() -> None:
    accounts = GroupLedger("run", 2)
    buffer = Buffer(CURATION, accounts, clock=Clock())
    for draw in (1, 2):
        accounts.published(draw, None, 1)
        for member in (0, 1):
            buffer.offer(record(draw, member, 1, 1_000), 0, 2 * draw + member)

    assert buffer.full()
