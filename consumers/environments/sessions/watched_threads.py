"""Threads that run the sessions of plain environments, many rollouts on each, and their watch."""

import threading
import time
import zlib
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from queue import SimpleQueue

import structlog

from rollcall.consumers.environments.sessions.session_step import (
    REAP_EVERY_S,
    Give,
    Late,
    SessionStep,
    SessionTimes,
    answer_to,
)
from rollcall.consumers.loop.time_guard import TimeGuard
from rollcall.sandbox.run_inline import run_inline
from rollcall.sandbox.sessions import Make, Sessions
from rollcall.schemas.answer_cache import AnswerCache
from rollcall.schemas.errors import FailureCode
from rollcall.schemas.ids import RolloutKey
from rollcall.schemas.messages import CallFailed, EnvironmentStepped

MOST_APART = 128
"""The most threads with a single rollout; further slow rollouts share their thread."""

log = structlog.get_logger()


class ThreadTask:
    """An action on the sessions of a thread that belongs to no rollout."""

    __slots__ = ("began", "run", "timeout_s")
    rollout_id = ""
    whose: RolloutKey | None = None

    def __init__(self, run: Callable[[Sessions], object], timeout_s: float) -> None:
        self.run = run
        self.timeout_s = timeout_s
        self.began = 0.0


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
                within = self.guard.within(request.timeout_s) if self.guard else None
                late = self.late(request.step)
                body = late or run_inline(answer_to(request, self.sessions, within))
                if request.claim():
                    self.give(request.step, body, request.record)
            self.current = None
            self.done += 1

    def _next(self) -> SessionStep | ThreadTask | None:
        with self.turn:
            if self.abandoned or not self.inbox:
                return None
            request = self.inbox.popleft()
            request.began = time.monotonic()
            self.current = request
            return request

    def busy_s(self, now: float) -> float:
        """Return for how long the thread has been running its current request."""
        return now - self.current.began if self.current is not None else 0.0

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


class WatchedThreads:
    """`count` threads, and one more for each rollout that a slow step has separated.

    All methods run on the loop's thread.

    With `count=0` there is no thread: the caller's runs everything, and only a `guard` ends a step
    that hangs.
    """

    def __init__(
        self,
        give: Give,
        late: Late,
        push: Callable[[], None],
        *,
        count: int,
        make: Make,
        times: SessionTimes,
        guard: TimeGuard | None = None,
    ) -> None:
        self.guard = guard
        self.give = give
        self.late = late
        self.push = push
        self.times = times
        self.counts: Counter[str] = Counter()
        self._threaded = count > 0
        last: AnswerCache[EnvironmentStepped] = AnswerCache()
        self.shared = [self._thread(Sessions(make, last)) for _ in range(max(1, count))]
        self.apart: dict[RolloutKey, SessionThread] = {}
        """Threads of rollouts that a slow step has separated, or that are bound to such threads."""
        self._reap_due = 0.0

    def _thread(self, sessions: Sessions) -> SessionThread:
        return SessionThread(
            self.give, self.late, self.push, sessions, threaded=self._threaded, guard=self.guard
        )

    def dispatch(self, works: Iterable[SessionStep]) -> None:
        """Give each step to the thread of its rollout."""
        shares: dict[SessionThread, list[SessionStep]] = {}
        for work in works:
            shares.setdefault(self._home(work.whose), []).append(work)
        for thread, share in shares.items():
            thread.ask(share)

    def _home(self, whose: RolloutKey) -> SessionThread:
        apart = self.apart.get(whose)
        return apart or self.shared[zlib.crc32(whose[0].encode()) % len(self.shared)]

    def everywhere(self, run: Callable[[Sessions], object]) -> None:
        """Queue an action on the sessions of every thread."""
        for thread in self._all():
            thread.ask([ThreadTask(run, self.times.close_s)])

    def _all(self) -> list[SessionThread]:
        return list(dict.fromkeys([*self.shared, *self.apart.values()]))

    def unfinished(self) -> int:
        """Count the requests that are not done."""
        return sum(thread.given - thread.done for thread in self._all())

    def watch(self) -> None:
        """Replace threads that are dead, late or slow, and end lapsed sessions."""
        now = time.monotonic()
        for thread in self._all():
            with thread.turn:  # it begins no other request until we are done
                self._watch(thread, now)
        if now >= self._reap_due:
            self._reap_due = now + min(REAP_EVERY_S, self.times.lease_s)
            self.everywhere(lambda sessions: self._reap(sessions, now))

    def _watch(self, thread: SessionThread, now: float) -> None:
        if thread.dead():
            self._bury(thread)
        elif (late := thread.overdue(now)) is not None:
            self._give_up(thread, late)
        elif thread not in self.shared:
            if thread.empty():
                self._end(thread)
        elif thread.busy_s(now) > self.times.slow_s:
            self._leave_alone(thread)

    def _reap(self, sessions: Sessions, now: float) -> None:
        """End sessions whose rollouts sent nothing for the time of a lease; runs on their thread.

        A rollout that ended while its agents worker died sends no close.
        """
        lapsed = run_inline(sessions.reap(now, self.times.lease_s))
        if lapsed:
            self.counts["lapsed"] += lapsed
            log.info("sessions_expired", count=lapsed, lease_s=self.times.lease_s)

    def _leave_alone(self, thread: SessionThread) -> None:
        """Move all other sessions out of a thread whose step takes long."""
        request = thread.current
        crowded = len(thread.sessions) > 1 or thread.inbox
        if isinstance(request, SessionStep) and crowded and len(self.apart) < MOST_APART:
            self.counts["left_alone"] += 1
            self._part(thread, request.whose)

    def _part(self, thread: SessionThread, stays: RolloutKey | None) -> SessionThread:
        """Replace a thread by a new one; the old one keeps one rollout and those bound to it."""
        new = self.shared[self.shared.index(thread)] = self._thread(thread.sessions.part(stays))
        for whose in filter(None, (stays, *thread.sessions.rollouts())):
            self.apart[whose] = thread
        waiting = thread.take_back()
        self.dispatch(request for request in waiting if isinstance(request, SessionStep))
        # A chore concerns all sessions of the thread, which are on two threads now.
        chores = [request for request in waiting if isinstance(request, ThreadTask)]
        for both in (thread, new) if chores else ():
            both.ask(chores)
        return new

    def _give_up(self, thread: SessionThread, late: SessionStep | ThreadTask) -> None:
        """Answer a step that is past its timeout, and abandon its thread."""
        if isinstance(late, SessionStep) and not late.claim():
            return  # its thread has just answered it
        self._abandon(thread, late)
        self.counts["abandoned"] += 1
        if isinstance(late, SessionStep):
            msg = f"no answer within {late.timeout_s:g} s; its environment was abandoned"
            self.give(late.step, CallFailed(FailureCode.DEADLINE, msg, True), late.record)
        log.warning("environment_hung", rollout_id=late.rollout_id, timeout_s=late.timeout_s)

    def _bury(self, thread: SessionThread) -> None:
        """Answer the step that its thread died of; without a step the error ends the worker."""
        request, error = thread.current, thread.died_of
        work = request if isinstance(request, SessionStep) and request.claim() else None
        if error is not None and work is None:
            raise error
        self._abandon(thread, request)
        self.counts["died"] += 1
        if work is not None:
            msg = f"the environment ended its thread: {type(error).__name__}"
            self.give(work.step, CallFailed(FailureCode.RAISED, msg, False), work.record)
        self.shared[0].ask(
            [ThreadTask(lambda _: run_inline(thread.sessions.close()), self.times.close_s)]
        )
        log.error("environments_thread_died", error=type(error).__name__)

    def _abandon(self, thread: SessionThread, request: SessionStep | ThreadTask | None) -> None:
        """Abandon a thread with its request; all others continue on a new one."""
        if thread in self.shared:
            new = self._part(thread, request.whose if request else None)
            if isinstance(request, ThreadTask):
                new.ask([request])  # it has the sessions that the chore had not reached
        self._end(thread)

    def _end(self, thread: SessionThread) -> None:
        """Forget a thread of separated rollouts; hand its queue out again."""
        self.apart = {name: other for name, other in self.apart.items() if other is not thread}
        thread.abandon()
        self.dispatch(work for work in thread.take_back() if isinstance(work, SessionStep))
