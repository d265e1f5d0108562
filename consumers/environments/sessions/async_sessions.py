"""All async sessions: each in a task of its own on the event loop, hundreds on one thread.

The loop's thread hands out and watches; methods with an underscore run on the event-loop thread.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from weakref import WeakValueDictionary

import structlog

from rollcall.consumers.environments.sessions.async_session import (
    AsyncSession,
    SessionContext,
    Wanted,
)
from rollcall.consumers.environments.sessions.rollout_slots import RolloutSlots
from rollcall.consumers.environments.sessions.session_thread import Body, Give, Late, SessionStep
from rollcall.consumers.environments.sessions.session_times import SessionTimes
from rollcall.consumers.environments.sessions.slots import Slots
from rollcall.consumers.environments.sessions.watched_threads import REAP_EVERY_S
from rollcall.consumers.loop.event_loop_thread import EventLoopThread
from rollcall.sandbox.boxes.box_removal import Tell
from rollcall.sandbox.environment import AnyEnvironment, EnvironmentKind, slots_beside
from rollcall.sandbox.sessions import place_of, stale
from rollcall.schemas.answer_cache import AnswerCache
from rollcall.schemas.ids import RolloutKey
from rollcall.schemas.messages import CallFailed

LEAVE_S = 15.0
"""Time limit for ending all sessions when a worker leaves."""

log = structlog.get_logger()


class AsyncSessions:
    """Sessions by rollout and name; all of a rollout are of one attempt."""

    def __init__(
        self,
        give: Give,
        late: Late,
        push: Callable[[], None],
        *,
        loop_thread: EventLoopThread,
        make: Callable[[str, str, str], AnyEnvironment],
        kind_of: Callable[[str], EnvironmentKind],
        slots: Mapping[str, int],
        times: SessionTimes,
        counts: Counter[str],
        note: Tell = lambda instance: None,
    ) -> None:
        self.give = give
        self.push = push
        self.loop_thread = loop_thread
        self.lease_s = times.lease_s
        self.counts = counts
        self.kind_of = kind_of
        self.slots = Slots(slots)
        self._of_attempts = WeakValueDictionary[tuple[RolloutKey, int], RolloutSlots]()
        """Kept for as long as one of their sessions exists."""
        self.given = 0
        self.done = 0
        self.answered_here = 0
        """Steps answered by the loop's thread, while the event loop was blocked."""
        self.standing = 0
        self.rollouts: dict[RolloutKey, dict[str, AsyncSession]] = {}
        self._taking = True
        """False if new work is left to another worker."""
        self._pushing = False
        self._reap_due = 0.0
        self._around = SessionContext(
            make, self._slots_of,
            lambda name: kind_of(name).replayable is not False,  # if it may be: ask for history
            self._slots_for, late, self._told, self._gone, self._stands, loop_thread.fail, note,
            AnswerCache(), times.grace_s,
        )  # fmt: skip

    def dispatch(self, works: Sequence[SessionStep]) -> None:
        """Queue these steps, those of one session in order."""
        self.given += len(works)
        self.loop_thread.call(partial(self._take, works))

    def drop(self, partition: int) -> None:
        """End all sessions of a partition that was reassigned, whatever they are doing."""
        self._everywhere(lambda session: session.partition == partition)

    def _everywhere(self, wanted: Callable[[AsyncSession], bool]) -> None:
        def end() -> None:
            for session in filter(wanted, self._all()):
                session.end()

        if self.given:
            self.loop_thread.call(end)

    def unfinished(self) -> int:
        """Count steps that began and are not answered; those that wait for slots have not begun."""
        return max(0, self.given - self.done - self.answered_here - self.standing)

    def watch(self) -> None:
        """Answer steps in time, also while a session blocks the event loop, and end lapsed
        sessions."""
        now = time.monotonic()
        if now >= self._reap_due:
            self._reap_due = now + min(REAP_EVERY_S, self.lease_s)
            self._everywhere(self._lapsed)
        self.loop_thread.turn(busy=self.unfinished() > 0)
        self.loop_thread.watch()
        if self.loop_thread.blocked_for_s() > self.loop_thread.slow_s:
            self._answer_overdue(now)

    def _answer_overdue(self, now: float) -> None:
        for session in self._all():
            work = session.current
            if work is None or not session.overdue(now) or not work.claim():
                continue
            self.answered_here += 1
            self.counts["overdue"] += 1
            msg = f"no answer within {work.timeout_s:g} s, while all that waits was blocked by "
            msg += self.loop_thread.culprit()
            self.give(work.step, CallFailed("deadline", msg, True), work.record)

    def leave(self, *, patient: bool) -> None:
        """End idle sessions; unless patient, also those that another worker can rebuild.

        Their open steps are left to that worker. With the last session, shared parts of this one
        are released: agents' processes, and the gateway that they call.
        """
        if self.given:
            self.loop_thread.call(partial(self._let_go, patient=patient))

    def _let_go(self, *, patient: bool) -> None:
        self._taking = patient
        for session in self._all():
            if session.idle() or (session.rebuildable() and not patient):
                session.end()
        if not (patient or self.rollouts):
            self.loop_thread.give_back()

    def close(self, timeout_s: float = LEAVE_S) -> None:
        """End all sessions, then the event loop; sessions that do not end in time are logged."""
        if not self.loop_thread.run(self._leave, timeout_s):
            log.error("sessions_not_ended", sessions=[each.place for each in self._all()])
        self.loop_thread.close(timeout_s)

    async def _leave(self) -> None:
        ending = self._all()
        for session in ending:
            session.end()
        if ending:
            await asyncio.wait([session.task for session in ending])

    def _all(self) -> list[AsyncSession]:
        return [each for group in list(self.rollouts.values()) for each in list(group.values())]

    def _take(self, works: Sequence[SessionStep]) -> None:
        for work in works:
            if not self._taking:
                self._answer(work, None)
            elif self._is_current(work):
                self._ask(work)

    def _is_current(self, work: SessionStep) -> bool:
        """End the sessions of older attempts than a step's; answer a step of an older one."""
        wanted = work.step.attempt
        for session in list(self.rollouts.get(work.whose, {}).values()):
            if wanted < session.attempt:
                self._answer(work, _stale(place_of(work.step), session.attempt))
                return False
            if wanted > session.attempt:
                session.end(_stale(session.place, wanted))
        return True

    def _ask(self, work: SessionStep) -> None:
        group = self.rollouts.get(work.whose, {})
        session = group.get(work.step.session)
        if session is None and work.step.kind == "close":
            self._answer(work, CallFailed("closed", "nothing is open", False))
            return
        if session is None:
            session = AsyncSession(self._around, work)
            self.rollouts.setdefault(work.whose, group)[session.name] = session
        session.ask(work)

    def _gone(self, session: AsyncSession) -> None:
        """Forget a session that takes no more; hand its queue to a new one."""
        group = self.rollouts.get(session.whose, {})
        if group.get(session.name) is session:
            del group[session.name]
            if not group:
                del self.rollouts[session.whose]
        waiting = list(session.inbox)
        session.inbox.clear()
        self._take(waiting)

    def _lapsed(self, session: AsyncSession) -> bool:
        """Return True if a session has had no step for the time of a lease."""
        lapsed = session.idle_s(time.monotonic()) > self.lease_s
        if lapsed:
            self.counts["lapsed"] += 1
            log.info("session_expired", session=session.place, lease_s=self.lease_s)
        return lapsed

    def _slots_of(self, name: str, config_json: str) -> Wanted:
        """Return the slots of an environment and those beside it. Raises WorkFailed."""
        kind = self.kind_of(name)
        beside = slots_beside(name, kind, config_json)
        return kind.slots, tuple(each for each in beside if each in self.slots.most)

    def _slots_for(self, whose: RolloutKey, attempt: int) -> RolloutSlots:
        key = whose, attempt
        found = self._of_attempts.get(key)
        if found is None:
            found = self._of_attempts[key] = RolloutSlots(self.slots)
        return found

    def _stands(self, more: int) -> None:
        self.standing += more

    def _answer(self, work: SessionStep, body: Body | None) -> None:
        if work.claim():
            self._told(work, body)

    def _told(self, work: SessionStep, body: Body | None) -> None:
        self.done += 1
        if body is None:
            return
        self.loop_thread.guarded(partial(self.give, work.step, body, work.record))
        if not self._pushing:
            self._pushing = True
            asyncio.get_running_loop().call_soon(self.loop_thread.guarded, self._push)

    def _push(self) -> None:
        """Push once for all answers that were given together."""
        self._pushing = False
        self.push()


def _stale(place: str, running: int) -> CallFailed:
    error = stale(place, running)
    return CallFailed(error.code, str(error), error.retriable)
