"""One event loop thread for all async work: it starts lazily, is watched, and ends in time."""

import asyncio
import sys
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from rollcall.consumers.loop.event_loop_thread import EventLoopThread
from rollcall.schemas.errors import EventLoopBlocked
from tests.support.waiting import until

PATIENCE_S = 20.0


@pytest.fixture
def loop_thread() -> Iterator[EventLoopThread]:
    loop_thread = EventLoopThread(threaded=True, slow_s=0.05, wedged_s=0.2)
    yield loop_thread
    loop_thread.close()


def watched(loop_thread: EventLoopThread, condition: Callable[[], bool]) -> None:
    """Wait for a condition while the event loop thread is watched."""

    def looked() -> bool:
        loop_thread.watch()
        return condition()

    until(looked, PATIENCE_S, lambda: "the room does not get there")


def test_an_unused_event_loop_thread_is_never_started() -> None:
    before = threading.active_count()
    loop_thread = EventLoopThread(threaded=True)

    loop_thread.watch()
    loop_thread.turn(busy=True)
    loop_thread.close()

    assert threading.active_count() == before


def test_calls_run_in_order_on_one_thread(loop_thread: EventLoopThread) -> None:
    done: list[tuple[int, int]] = []
    for number in range(100):
        loop_thread.call(lambda number=number: done.append((number, threading.get_ident())))

    watched(loop_thread, lambda: len(done) == 100)

    assert [number for number, _ in done] == list(range(100))
    assert {thread for _, thread in done} not in ({threading.get_ident()}, set())


def test_the_loop_without_a_thread_is_turned_by_its_owner() -> None:
    loop_thread = EventLoopThread(threaded=False)
    done: list[int] = []

    async def waits() -> None:
        await asyncio.sleep(0.005)
        done.append(threading.get_ident())

    tasks: list[asyncio.Task[None]] = []
    loop_thread.call(lambda: tasks.append(asyncio.get_running_loop().create_task(waits())))
    deadline = time.monotonic() + PATIENCE_S
    while not done:
        assert time.monotonic() < deadline
        loop_thread.turn(busy=True)

    assert done == [threading.get_ident()]
    loop_thread.close()


def test_a_blocking_task_is_named_and_ends_the_owner(loop_thread: EventLoopThread) -> None:
    gate = threading.Event()

    async def hog() -> None:
        gate.wait()

    tasks: list[asyncio.Task[None]] = []
    begin = lambda: tasks.append(asyncio.get_running_loop().create_task(hog(), name="a hog"))  # noqa: E731
    loop_thread.call(begin)

    with pytest.raises(EventLoopBlocked, match=r"a hog has blocked.*threading.py:\d+ in wait"):
        watched(loop_thread, lambda: False)
    gate.set()
    watched_again = time.monotonic() + PATIENCE_S
    while loop_thread.blocked_for_s():
        assert time.monotonic() < watched_again
    loop_thread.watch()


def test_a_task_that_exits_does_not_end_the_event_loop_thread(loop_thread: EventLoopThread) -> None:
    async def leaves() -> None:
        sys.exit(3)

    tasks: list[asyncio.Task[None]] = []
    loop_thread.call(lambda: tasks.append(asyncio.get_running_loop().create_task(leaves())))
    done = threading.Event()
    loop_thread.call(done.set)

    watched(loop_thread, done.is_set)
    watched(loop_thread, lambda: tasks[0].done())
    assert isinstance(tasks[0].exception(), SystemExit)


def test_the_first_failure_is_raised_by_the_watcher(loop_thread: EventLoopThread) -> None:
    loop_thread.fail(KeyError("first"))
    loop_thread.fail(KeyError("second"))

    with pytest.raises(KeyError, match="first"):
        loop_thread.watch()


@pytest.mark.parametrize("threaded", [False, True])
def test_closing_awaits_the_closing_tasks_and_cancels_all_others(
    threaded: bool,
) -> None:
    loop_thread, said = EventLoopThread(threaded=threaded), []

    async def waits() -> None:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            said.append("cancelled")

    async def goes() -> None:
        await asyncio.sleep(0)
        said.append("awaited")

    async def begin() -> None:
        tasks.append(asyncio.create_task(waits()))
        loop_thread.at_close(goes)
        await asyncio.sleep(0)

    tasks: list[asyncio.Task[None]] = []
    loop_thread.call(lambda: None)
    assert loop_thread.run(begin, PATIENCE_S)

    loop_thread.close()
    loop_thread.close()

    assert said == ["awaited", "cancelled"]


@pytest.mark.parametrize("threaded", [False, True])
def test_a_run_past_its_time_limit_is_abandoned(threaded: bool) -> None:
    loop_thread = EventLoopThread(threaded=threaded)
    loop_thread.call(lambda: None)

    async def waits() -> None:
        await asyncio.get_running_loop().create_future()

    assert not loop_thread.run(waits, 0.01)
    loop_thread.close()


def test_a_blocked_event_loop_thread_is_abandoned_at_close() -> None:
    loop_thread, gate, inside = (
        EventLoopThread(threaded=True, slow_s=0.01),
        threading.Event(),
        threading.Event(),
    )

    def hog() -> None:
        inside.set()
        gate.wait()

    loop_thread.call(hog)
    assert inside.wait(PATIENCE_S)

    async def nothing() -> None:
        """Never begun."""

    assert not loop_thread.run(nothing, 0.01)
    loop_thread.close(0.01)
    gate.set()
