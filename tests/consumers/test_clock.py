"""Waits when somebody sets a clock, and when the broker's differs from ours."""

from consumers.clock import LogClock, steady_wall


def test_a_steady_clock_does_not_jump_when_the_wall_clock_is_set() -> None:
    wall, ticks = [1000.0], [5.0]
    clock = steady_wall(lambda: wall[0], lambda: ticks[0])
    assert clock() == 1000.0

    wall[0], ticks[0] = 1000.0 + 3600, 7.0
    assert clock() == 1002.0
    wall[0], ticks[0] = 1000.0 - 3600, 8.0
    assert clock() == 1003.0


def test_a_clock_behind_the_log_takes_the_logs_time_and_goes_on_from_there() -> None:
    now = [1000.0]
    clock = LogClock(lambda: now[0])

    clock.saw(999_000)
    assert clock() == 1000.0
    clock.saw(4_600_000)
    assert clock() == 4600.0
    now[0] = 1010.0
    clock.saw(4_600_000)
    assert clock() == 4610.0
