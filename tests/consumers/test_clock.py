"""Waits when somebody sets a clock, and when the broker's differs from ours."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumers.clock import LogClock, steady_wall


def test_a_steady_clock_does_not_jump_when_the_wall_clock_is_set() -> None:
    wall, ticks = [1000.0], [5.0]
    clock = steady_wall(lambda: wall[0], lambda: ticks[0])
    assert clock() == 1000.0

    wall[0], ticks[0] = 1000.0 + 3600, 7.0
    assert clock() == 1002.0
    wall[0], ticks[0] = 1000.0 - 3600, 8.0
    assert clock() == 1003.0


@pytest.fixture
def now() -> list[float]:
    return [1000.0]


@pytest.fixture
def clock(now: list[float]) -> LogClock:
    return LogClock(lambda: now[0])


def test_a_clock_ahead_of_the_log_goes_by_the_log_at_once(
    clock: LogClock, now: list[float]
) -> None:
    clock.saw(870_000)
    assert clock() == 870.0

    now[0] = 1010.0
    assert clock() == 880.0


def test_a_record_that_is_read_late_sets_it_back_until_the_next(clock: LogClock) -> None:
    clock.saw(400_000)
    assert clock() == 400.0

    clock.saw(1_000_000)
    assert clock() == 1000.0


def test_one_stamp_that_is_ahead_moves_nothing(clock: LogClock, now: list[float]) -> None:
    clock.saw(1_600_000)
    now[0] = 1000.1
    clock.saw(1_000_100)

    assert clock() == 1000.1


def test_a_clock_behind_the_log_is_drawn_after_it_a_little_at_a_time(
    clock: LogClock, now: list[float]
) -> None:
    clock.saw(1_060_000)
    assert clock() == 1000.0

    times = []
    for at in (1100.0, 1200.0, 1300.0, 1400.0):
        now[0] = at
        times.append(clock())
        clock.saw(int(at * 1000) + 60_000)

    assert times == [1125.0, 1250.0, 1360.0, 1460.0]


def test_a_log_that_is_no_longer_ahead_counts_at_once(clock: LogClock, now: list[float]) -> None:
    clock.saw(1_060_000)
    now[0] = 1300.0
    clock.saw(1_300_000)

    assert clock() == 1300.0


@given(
    stamps=st.lists(st.tuples(st.floats(0.0, 100.0), st.floats(-3600.0, 3600.0)), max_size=50),
    left=st.floats(0.0, 100.0),
)
def test_whatever_stamps_come_a_wait_lasts_four_fifths_of_what_it_may(
    stamps: list[tuple[float, float]], left: float
) -> None:
    """Unless the clock had been set back meanwhile, which made it longer."""
    now = [10_000.0]
    clock = LogClock(lambda: now[0])
    began, highest = now[0], clock()

    for after, ahead in stamps:
        now[0] += after
        clock.saw(int((now[0] + ahead) * 1000))
        highest = max(highest, clock())
    now[0] += left

    assert max(highest, clock()) - began <= (now[0] - began) * 1.25 + 1e-6


def test_a_clock_that_is_not_drawn_is_never_ahead_of_its_own(now: list[float]) -> None:
    clock = LogClock(lambda: now[0], slew=0)
    clock.saw(1_600_000)
    now[0] = 5000.0

    assert clock() == 5000.0
