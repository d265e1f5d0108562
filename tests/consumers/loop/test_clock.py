"""Waits under clock changes and under a broker clock that differs from ours."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollcall.consumers.loop.clock import LogClock, steady_wall


def test_a_steady_clock_ignores_wall_clock_changes() -> None:
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


def test_a_clock_ahead_of_the_log_follows_it_at_once(clock: LogClock, now: list[float]) -> None:
    clock.saw(870_000)
    assert clock() == 870.0

    now[0] = 1010.0
    assert clock() == 880.0


def test_a_late_record_sets_the_clock_back_until_the_next(clock: LogClock) -> None:
    clock.saw(400_000)
    assert clock() == 400.0

    clock.saw(1_000_000)
    assert clock() == 1000.0


def test_a_single_future_timestamp_does_not_move_the_clock(
    clock: LogClock, now: list[float]
) -> None:
    clock.saw(1_600_000)
    now[0] = 1000.1
    clock.saw(1_000_100)

    assert clock() == 1000.1


def test_a_clock_behind_the_log_catches_up_gradually(clock: LogClock, now: list[float]) -> None:
    clock.saw(1_060_000)
    assert clock() == 1000.0

    times = []
    for at in (1100.0, 1200.0, 1300.0, 1400.0):
        now[0] = at
        times.append(clock())
        clock.saw(int(at * 1000) + 60_000)

    assert times == [1125.0, 1250.0, 1360.0, 1460.0]


def test_a_log_clock_no_longer_ahead_is_followed_at_once(clock: LogClock, now: list[float]) -> None:
    clock.saw(1_060_000)
    now[0] = 1300.0
    clock.saw(1_300_000)

    assert clock() == 1300.0


@given(
    stamps=st.lists(st.tuples(st.floats(0.0, 100.0), st.floats(-3600.0, 3600.0)), max_size=50),
    left=st.floats(0.0, 100.0),
)
def test_a_wait_lasts_at_least_four_fifths_of_its_time(
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


def test_a_clock_without_slew_is_never_ahead_of_its_own_time(now: list[float]) -> None:
    clock = LogClock(lambda: now[0], slew=0)
    clock.saw(1_600_000)
    now[0] = 5000.0

    assert clock() == 5000.0
