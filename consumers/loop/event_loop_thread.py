"""One event loop on one thread, for code that waits.

Code on the event loop must await all that takes time. A task that blocks instead stops all others:
the watch, on another thread, logs the name of the task, and ends the process if it does not return.
"""

import asyncio
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import structlog

from rollcall.sandbox.alarms import CarryingExecutor
from rollcall.schemas.errors import EventLoopBlocked

ASK_EVERY_S = 0.25
SLOW_S = 1.0
"""Time after which a loop that does not turn is logged as blocked, once, with the task."""
WEDGED_S = 60.0
CLOSE_S = 5.0
PASSES = 16
PAUSE_S = 0.001
"""Time that a turn without a thread waits for others, such as processes, if work is left."""

log = structlog.get_logger()


class EventLoopThread:
    """An event loop and its thread; without a thread, the caller turns the loop.

    It starts at its first use, so an unused one costs nothing.
    """

    def __init__(
        self, *, threaded: bool, slow_s: float = SLOW_S, wedged_s: float = WEDGED_S
    ) -> None:
        self.slow_s = slow_s
        self.wedged_s = wedged_s
        self.threaded = threaded
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._leaving = False
        self._at_close: list[Callable[[], Awaitable[object]]] = []
        self._giving_back: asyncio.Task[None] | None = None
        self._asked_at: float | None = None
        """Time of a sign-of-life request that the event loop has not answered yet; else None."""
        self._heard_at = 0.0
        self._said = False
        self._failed: BaseException | None = None

    def call(self, run: Callable[[], object]) -> None:
        """Run something on the event loop, soon and in order; from any thread.

        Its errors are raised in `watch`.
        """
        self._begun().call_soon_threadsafe(self.guarded, run)

    def guarded(self, run: Callable[[], object]) -> None:
        """Run code of the loop's owner, whose errors end the owner."""
        try:
            run()
        except BaseException as error:  # the watch raises it, on its thread
            self.fail(error)

    def at_close(self, run: Callable[[], Awaitable[object]]) -> None:
        """Register something to be awaited when the event loop closes; last in, first out."""
        self._at_close.append(run)

    def give_back(self) -> "asyncio.Task[None]":
        """Start to await what `at_close` registered, once; call it on the event loop."""
        if self._giving_back is None:
            self._giving_back = asyncio.create_task(self._give_back(), name="give back")
        return self._giving_back

    async def _give_back(self) -> None:
        while self._at_close:
            await self._at_close.pop()()

    def _begun(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            self._loop.set_default_executor(CarryingExecutor(thread_name_prefix="event-loop"))
            if self.threaded:
                self._thread = threading.Thread(target=self._live, name="event-loop", daemon=True)
                self._thread.start()
        return self._loop

    def _live(self) -> None:
        loop = self._begun()
        while True:
            try:
                loop.run_forever()
            except BaseException as error:  # asyncio lets SystemExit of any task end its loop
                log.error("event_loop_ended", error=type(error).__name__)
            else:
                loop.close()
                return

    def turn(self, *, busy: bool) -> None:
        """Run a loop without a thread until all tasks wait; if `busy`, wait a little longer."""
        if self._loop is None or self._thread is not None:
            return
        for _ in range(PASSES):
            self._loop.call_soon(self._loop.stop)
            self._loop.run_forever()
        if busy:
            self._loop.call_later(PAUSE_S, self._loop.stop)
            self._loop.run_forever()

    def blocked_for_s(self) -> float:
        """Return for how long the event loop has not turned."""
        asked_at = self._asked_at  # the event-loop thread may clear it
        return 0.0 if asked_at is None else time.monotonic() - asked_at

    def watch(self) -> None:
        """Check that the event loop turns. Raises EventLoopBlocked if it has not for too long."""
        if self._failed is not None:
            raise self._failed
        if self._thread is None:
            return
        now = time.monotonic()
        if self._asked_at is None and now - self._heard_at > ASK_EVERY_S:
            self._asked_at = now
            self.call(self._hear)
        elif not self._said and self.blocked_for_s() > self.slow_s:
            self._said = True
            log.warning("event_loop_blocked", by=self.culprit(), at=self._place())
        elif self.blocked_for_s() > self.wedged_s:
            msg = (
                f"{self.culprit()} has blocked all that waits for {self.blocked_for_s():.0f} s, at "
            )
            msg += f"{self._place()}: what takes long must be awaited, or not be `async def`"
            raise EventLoopBlocked(msg)

    def _hear(self) -> None:
        if self._said:
            log.info("event_loop_recovered", after_s=round(self.blocked_for_s(), 1))
        self._asked_at, self._heard_at, self._said = None, time.monotonic(), False

    def culprit(self) -> str:
        """Return the name of the task that is running."""
        task = asyncio.current_task(self._loop) if self._loop else None
        return task.get_name() if task else "something that is no task"

    def _place(self) -> str:
        """Return the code position of the event-loop thread."""
        thread = self._thread.ident if self._thread else None
        frame = sys._current_frames().get(thread or 0)
        if frame is None:
            return "nowhere"
        return f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}"

    def fail(self, error: BaseException) -> None:
        """Have the watch raise this error, since the owner of the event loop cannot continue."""
        self._failed = self._failed or error

    def run(self, work: Callable[[], Coroutine[Any, Any, None]], timeout_s: float) -> bool:
        """Run something on the event loop and wait for it; return False if it took too long.

        Call it from another thread than the event loop's. A loop that never started has nothing to
        do.
        """
        if self._loop is None or self._loop.is_closed():
            return True
        timed = _timed(work, timeout_s)
        try:
            if self._thread is None:
                self._loop.run_until_complete(timed)
            else:
                doing = asyncio.run_coroutine_threadsafe(timed, self._loop)
                doing.result(timeout_s + self.slow_s)
        except TimeoutError:
            return False
        return True

    def close(self, timeout_s: float = CLOSE_S) -> None:
        """Await what `at_close` registered, cancel all tasks, and end the thread.

        A task that does not end keeps the event-loop thread alive; it is not waited for.
        """
        if self._loop is None or self._leaving:
            return
        self._leaving = True
        if self._thread is not None:
            self.call(lambda: self._begun().create_task(self._leave()))
            self._thread.join(timeout_s)
            left = not self._thread.is_alive()
        else:
            left = self.run(self._leave, timeout_s)
            if left:
                self._loop.close()
        if not left:
            log.error("event_loop_not_stopped", by=self.culprit())

    async def _leave(self) -> None:
        await self.give_back()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        if others:
            await asyncio.wait(others)
        await asyncio.get_running_loop().shutdown_asyncgens()
        if self._thread is not None:
            asyncio.get_running_loop().stop()


async def _timed(work: Callable[[], Coroutine[Any, Any, None]], timeout_s: float) -> None:
    async with asyncio.timeout(timeout_s):
        await work()
