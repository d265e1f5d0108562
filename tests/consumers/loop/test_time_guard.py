"""Foreign code that does not return is ended, even if it resists."""

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest

from rollcall.consumers.loop.time_guard import SIGNAL, PoisonGuard, TimeGuard
from rollcall.schemas.errors import ProgramFailed

LIMIT_S = 0.05


@pytest.fixture
def guard() -> Iterator[TimeGuard]:
    before = signal.getsignal(SIGNAL)
    guard = TimeGuard("the program", LIMIT_S)
    guard.watch()
    yield guard
    signal.signal(SIGNAL, signal.SIG_IGN if before is signal.SIG_DFL else before)


# User code: it sleeps, and it swallows every exception that would end it.


def sleeps() -> None:
    time.sleep(30)


def spins() -> None:
    while True:
        pass


def swallows() -> None:
    while True:
        try:
            time.sleep(0.001)
        except Exception:
            continue


def swallows_everything() -> None:
    while True:
        try:
            while True:
                time.sleep(0.001)
        except BaseException:
            continue


def sleeps_over_it() -> None:
    try:
        time.sleep(30)
    except BaseException:
        time.sleep(30)


def suppresses() -> None:
    while True:
        with suppress(BaseException):
            time.sleep(0.001)


def clings_in_layers() -> None:
    def layer(depth: int) -> None:
        while True:
            try:
                layer(depth - 1) if depth else time.sleep(0.001)
            except BaseException:
                continue

    layer(20)


def takes_its_time_and_answers() -> None:
    with suppress(ProgramFailed):
        time.sleep(30)


def yields_for_ever() -> None:
    def generator() -> Iterator[int]:
        while True:
            try:
                yield 1
            except BaseException:
                yield 2

    for _ in generator():
        with suppress(Exception):
            time.sleep(0.001)


@pytest.mark.parametrize(
    "code",
    [
        sleeps,
        spins,
        swallows,
        swallows_everything,
        sleeps_over_it,
        suppresses,
        clings_in_layers,
        takes_its_time_and_answers,
        yields_for_ever,
    ],
)
def test_code_that_does_not_return_is_stopped_as_stuck(
    guard: TimeGuard, code: Callable[[], None]
) -> None:
    began = time.monotonic()

    with pytest.raises(ProgramFailed) as stuck, guard:
        code()

    assert stuck.value.code == "stuck"
    assert time.monotonic() - began < 20


def test_a_bar_around_a_guard_releases_with_it(guard: TimeGuard) -> None:
    with pytest.raises(ProgramFailed) as stuck, PoisonGuard(guard):
        clings_in_layers()

    assert stuck.value.code == "stuck"
    assert guard._since is None


def test_code_after_a_stuck_run_has_its_own_time_limit(guard: TimeGuard) -> None:
    for _ in range(3):
        with pytest.raises(ProgramFailed), guard:
            swallows()
        with guard:
            done = sum(range(1000))

        assert done == 499_500
        until = time.monotonic() + 3 * LIMIT_S
        while time.monotonic() < until:
            pass  # outside of the guard no code is interrupted


def test_code_that_returns_in_time_is_not_interrupted(guard: TimeGuard) -> None:
    with pytest.raises(ZeroDivisionError), guard:
        assert 1 // 0
