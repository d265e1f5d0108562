"""A thread that runs the sessions of some rollouts, and the requests to it."""

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from queue import SimpleQueue

from rollcall.consumers.log.protocols import Record
from rollcall.consumers.loop.time_guard import TimeGuard
from rollcall.sandbox.run_inline import run_inline
from rollcall.sandbox.sessions import Sessions, make_stepped
from rollcall.schemas.errors import ProgramFailed, RollcallError, WorkFailed
from rollcall.schemas.ids import RolloutKey, rollout_of
from rollcall.schemas.messages import CallFailed, EnvironmentStep, EnvironmentStepped

Body = EnvironmentStepped | CallFailed
Give = Callable[[EnvironmentStep, Body, Record], None]
Late = Callable[[EnvironmentStep], CallFailed | None]
"""Returns the answer to a step that is too late to begin, else None."""


class SessionStep:
    """One step in work; its thread or the watch answers it, whichever claims it first."""

    __slots__ = (
        "_claimed",
        "_lock",
        "record",
        "rollout_id",
        "step",
        "taken_at",
        "timeout_s",
        "whose",
    )

    def __init__(self, record: Record, step: EnvironmentStep, lock: threading.Lock) -> None:
        self.record = record
        self.step = step
        self.rollout_id = step.rollout_id
        self.whose = rollout_of(step)
        self.timeout_s = step.timeout_s
        self.taken_at = time.monotonic()
        self._lock = lock
        self._claimed = False

    def claim(self) -> bool:
        with self._lock:
            claimed, self._claimed = self._claimed, True
        return not claimed


def timed_answer(
    answer: EnvironmentStepped, work: SessionStep, began: float, in_line_s: float = 0.0
) -> EnvironmentStepped:
    """Return the observation with the time that its step waited here, and the time that it took.

    For `in_line_s` of that it waited for a slot.
    """
    waited_s = began - work.taken_at + in_line_s
    took_s = time.monotonic() - began - in_line_s
    return make_stepped(
        answer.text,
        answer.reward,
        answer.terminated,
        answer.truncated,
        answer.info,
        answer.index,
        answer.session,
        answer.claim,
        waited_s,
        took_s,
    )


class ThreadTask:
    """An action on the sessions of a thread that belongs to no rollout."""

    __slots__ = ("run", "timeout_s")
    rollout_id = ""
    whose: RolloutKey | None = None

    def __init__(self, run: Callable[[Sessions], object], timeout_s: float) -> None:
        self.run = run
        self.timeout_s = timeout_s


class SessionThread:
    """The sessions of some rollouts, on a thread of their own or on the caller's."""

    def __init__(
        self,
        give: Give,
        late: Late,
        push: Callable[[], None],
        sessions: Sessions,
        *,
        threaded: bool,
        guard: TimeGuard | None = None,
    ) -> None:
        """Start the thread, if any; without one, `guard` times each step."""
        self.guard = guard
        self.sessions = sessions
        self.give = give
        self.late = late
        self.push = push
        self.given = 0
        self.done = 0
        self.began = 0.0
        self.current: SessionStep | ThreadTask | None = None
        self.abandoned = False
        self.died_of: BaseException | None = None
        self.inbox: deque[SessionStep | ThreadTask] = deque()
        self.turn = threading.Lock()
        """Held to begin a request here, and to take requests away."""
        self._rung: SimpleQueue[None] = SimpleQueue()
        """One signal per batch of requests: to wake a thread costs more than a quick step."""
        self._thread: threading.Thread | None = None
        if threaded:
            self._thread = threading.Thread(target=self._live, name="environments", daemon=True)
            self._thread.start()

    def ask(self, requests: Sequence[SessionStep | ThreadTask]) -> None:
        """Queue requests, which run in order on the thread of the sessions."""
        self.given += len(requests)
        self.inbox.extend(requests)
        if self._thread:
            self._rung.put(None)
        else:
            self._serve_all()

    def abandon(self) -> None:
        """Let the thread end, now or when its step returns; then it closes its sessions."""
        self.abandoned = True
        self._rung.put(None)

    def take_back(self) -> list[SessionStep | ThreadTask]:
        """Remove and return the queued requests."""
        waiting = list(self.inbox)
        self.inbox.clear()
        self.given -= len(waiting)
        return waiting

    def _live(self) -> None:
        try:
            while not self.abandoned:
                self._rung.get()
                self._serve_all()
                self.push()
            run_inline(self.sessions.close())
        except BaseException as error:  # the watch handles it, on the loop's thread
            self.died_of = error

    def _serve_all(self) -> None:
        while (request := self._next()) is not None:
            if isinstance(request, ThreadTask):
                request.run(self.sessions)
            else:
                body = self.late(request.step) or self._do(request)
                if request.claim():
                    self.give(request.step, body, request.record)
            self.current = None
            self.done += 1

    def _next(self) -> SessionStep | ThreadTask | None:
        with self.turn:
            if self.abandoned or not self.inbox:
                return None
            self.began = time.monotonic()
            self.current = self.inbox.popleft()
            return self.current

    def _do(self, work: SessionStep) -> Body:
        step = work.step
        within = self.guard.within(step.timeout_s) if self.guard else nullcontext()
        try:
            with within:
                now = time.monotonic()
                answer = run_inline(
                    self.sessions.handle(step, partition=work.record.partition, now=now)
                )
        except ProgramFailed as error:
            return CallFailed("deadline", str(error), True)
        except WorkFailed as error:
            return CallFailed(error.code, str(error), error.retriable)
        except RollcallError as error:
            return CallFailed("raised", str(error), False)
        timed = timed_answer(answer, work, self.began)
        if answer.terminated or answer.truncated:
            run_inline(self.sessions.finish(step))
        return timed

    def busy_s(self, now: float) -> float:
        """Return for how long the thread has been running its current request."""
        return now - self.began if self.current is not None else 0.0

    def overdue(self, now: float) -> SessionStep | ThreadTask | None:
        """Return the current request if it is past its timeout."""
        request = self.current
        return request if request and self.busy_s(now) > request.timeout_s else None

    def dead(self) -> bool:
        """Return True if the thread ended without being told to."""
        return self._thread is not None and not self.abandoned and not self._thread.is_alive()

    def empty(self) -> bool:
        """Return True if there is neither a session nor anything to do."""
        return self.given == self.done and not len(self.sessions)
