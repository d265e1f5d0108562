"""All async sessions: each in a task of its own on the event loop, hundreds on one thread."""

import asyncio
import secrets
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from weakref import WeakValueDictionary

import structlog

from rollcall.consumers.environments.sessions.session_step import (
    REAP_EVERY_S,
    Body,
    Give,
    Late,
    SessionStep,
    SessionTimes,
    answer_to,
)
from rollcall.consumers.environments.sessions.slots import RolloutSlots, Slots
from rollcall.consumers.loop.event_loop_thread import EventLoopThread
from rollcall.sandbox.boxes.box_removal import Tell
from rollcall.sandbox.environment import AnyEnvironment, EnvironmentKind, slots_beside
from rollcall.sandbox.sessions import Sessions, place_of, stale
from rollcall.schemas.answer_cache import AnswerCache
from rollcall.schemas.errors import FailureCode
from rollcall.schemas.ids import RolloutKey
from rollcall.schemas.messages import CallFailed, EnvironmentStepped, Instance

LEAVE_S = 15.0
"""Time limit for ending all sessions when a worker leaves."""

Wanted = tuple[tuple[str, ...], tuple[str, ...]]
"""Classes of slots: those that a session takes, and further ones that its rollout needs."""
NONE: Wanted = (), ()

log = structlog.get_logger()


class AsyncSession:
    """One session of one attempt: its environment lives in one task from start to end.

    It is created and used only on the event-loop thread.
    """

    def __init__(self, table: "AsyncSessions", first: SessionStep) -> None:
        self.table = table
        self.rollout_id = first.rollout_id
        self.whose = first.whose
        self.name = first.step.session
        self.attempt = first.step.attempt
        self.place = place_of(first.step)
        self.partition = first.record.partition
        self.used_at = time.monotonic()
        self.inbox: deque[SessionStep] = deque()
        self.current: SessionStep | None = None
        self.over = False
        self.sessions = Sessions(self._make, table.last, table.replayable)
        self._in_line: tuple[str, ...] = ()
        """The slots that it waits for."""
        self._standing = 0
        self._slots = table.slots_for(self.whose, self.attempt)
        self._taken = NONE
        self._rung = asyncio.Event()
        self.task = asyncio.create_task(self._live(), name=self.place)
        self.task.add_done_callback(self._ended)

    def ask(self, work: SessionStep) -> None:
        """Queue a step; a close cancels the current one instead of waiting for it."""
        self.partition, self.used_at = work.record.partition, time.monotonic()
        self.inbox.append(work)
        self._count_standing()
        self._rung.set()
        if work.step.kind == "close":
            self._stop(CallFailed(FailureCode.CLOSED, f"{self.place} was closed meanwhile", True))

    def end(self, answer: CallFailed | None = None) -> None:
        """Close, and cancel current work; all queued steps get this answer."""
        self.over = True
        while self.inbox:
            self._answer(self.inbox.popleft(), answer)
        self._count_standing()
        self.table.gone(self)
        self._rung.set()
        self._stop(answer)

    def idle(self) -> bool:
        """Return True if nothing has begun: there is no step, or the step waits for a slot."""
        return bool(self._in_line) or (self.current is None and not self.inbox)

    def rebuildable(self) -> bool:
        """Return True if another worker can rebuild it; an opening in progress restarts there."""
        return self.sessions.rebuildable()

    def idle_s(self, now: float) -> float:
        """Return the time without any step or work."""
        return now - self.used_at if self.current is None else 0.0

    def overdue(self, now: float) -> bool:
        """Return True if its current work is past its timeout."""
        work = self.current
        return work is not None and work.overdue(now)

    def _stop(self, answer: CallFailed | None) -> None:
        if self.current is not None:
            self._answer(self.current, answer)
            self._cancel()

    def _answer(self, work: SessionStep, body: Body | None) -> None:
        if work.claim():
            self.table.told(work, body)

    def _cancel(self) -> None:
        """Cancel the current work, and check later that it has ended."""
        self.task.cancel()
        loop = asyncio.get_running_loop()
        loop.call_later(self.table.grace_s, self._insist, self.current)

    def _insist(self, work: SessionStep | None) -> None:
        """Cancel again if the work has not ended; other sessions continue elsewhere meanwhile."""
        if self.task.done() or self.current is not work:
            return
        log.error("environment_not_ended", session=self.place, grace_s=self.table.grace_s)
        self.over = True
        self.table.gone(self)
        self._cancel()

    async def _live(self) -> None:
        try:
            while not self.over:
                while self.inbox:
                    await self._serve(self.inbox.popleft())
                if self.over or not len(self.sessions):
                    break
                self._rung.clear()
                await self._rung.wait()
        finally:
            self.over = True
            if self.task.get_loop().is_running():  # else nothing can be awaited any more
                self.table.gone(self)
                await self._close()

    async def _close(self) -> None:
        """Release everything; a close that takes too long is cancelled too."""
        timer = asyncio.get_running_loop().call_later(self.table.grace_s, self._insist, None)
        try:
            await self.sessions.close()
        finally:
            timer.cancel()
            self._give_slots()

    def _ended(self, task: "asyncio.Task[None]") -> None:
        """Answer the step that the task died of; without a step the error ends the worker."""
        error = None if task.cancelled() else task.exception()
        if error is None:
            return
        work = self.current
        log.error("environments_task_died", session=self.place, error=type(error).__name__)
        if work is None or not work.claim():
            self.table.loop_thread.fail(error)
            return
        msg = f"the environment ended its task: {type(error).__name__}"
        self.table.told(work, CallFailed(FailureCode.RAISED, msg, False))

    async def _serve(self, work: SessionStep) -> None:
        """Answer one step within its timeout."""
        work.began = time.monotonic()
        self.current = work
        left_s = max(0.0, work.timeout_s)  # NaN becomes 0 too: a foreign producer may write it
        timer = asyncio.get_running_loop().call_later(left_s, self._overdue, work)
        try:
            self._answer(work, self.table.late(work.step) or await answer_to(work, self.sessions))
        except asyncio.CancelledError:
            if not self.task.cancelling():
                raise
        finally:
            timer.cancel()
        self.current = None
        # A cancel of this step must not reach the next one.
        while self.task.cancelling():
            self.task.uncancel()
        if not len(self.sessions):
            self._give_slots()

    def _overdue(self, work: SessionStep) -> None:
        """Answer a step that is past its timeout, and cancel it."""
        msg = f"no answer within {work.timeout_s:g} s; it was cancelled"
        if self._in_line:
            classes = " and ".join(map(repr, self._in_line))
            msg = f"no slot {classes} was free within {work.timeout_s:g} s"
        self._stop(CallFailed(FailureCode.DEADLINE, msg, True))

    async def _make(self, name: str, config_json: str) -> AnyEnvironment:
        """Make an environment once its slots are taken."""
        wanted = self.table.slots_of(name, config_json)
        if wanted != self._taken:
            self._give_slots()
            await self._take_slots(wanted)
        return self.table.make(name, config_json, self.place)

    async def _take_slots(self, wanted: Wanted) -> None:
        turn, since = secrets.token_hex(8), time.monotonic()
        classes = tuple(dict.fromkeys((*wanted[0], *wanted[1])))
        became = "failed"
        try:
            await self._slots.take(*wanted, partial(self._stand_in_line, classes, turn))
            self._taken, became = wanted, "lent"
        finally:
            if self._in_line:
                took_s = time.monotonic() - since
                self._in_line = ()
                if self.current is not None:
                    self.current.in_line_s += took_s
                self._count_standing()
                self._note_turn(turn, classes, became, took_s)

    def _stand_in_line(self, classes: tuple[str, ...], turn: str) -> None:
        """Note the wait once; called again after the wait for others of its own rollout."""
        if not self._in_line:
            self._in_line = classes
            self._count_standing()
            self._note_turn(turn, classes, "waiting")

    def _note_turn(
        self, turn: str, classes: tuple[str, ...], kind: str, took_s: float = 0.0
    ) -> None:
        whose, named = (self.rollout_id, self.attempt), ", ".join(classes)
        self.table.note(Instance(turn, "", kind, "", "", "", "unknown", *whose, named, took_s))

    def _count_standing(self) -> None:
        """Update the count of steps that have not begun because they wait for a slot."""
        standing = 1 + len(self.inbox) if self._in_line else 0
        self.table.stands(standing - self._standing)
        self._standing = standing

    def _give_slots(self) -> None:
        taken, self._taken = self._taken, NONE
        self._slots.give(*taken)


class AsyncSessions:
    """Sessions by rollout and name; all of a rollout are of one attempt.

    The loop's thread hands out and watches: `dispatch`, `drop`, `unfinished`, `watch`, `leave` and
    `close`. The other methods run on the event-loop thread.
    """

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
        self.late = late
        self.push = push
        self.loop_thread = loop_thread
        self.make = make
        self.note = note
        self.lease_s = times.lease_s
        self.grace_s = times.grace_s
        self.counts = counts
        self.kind_of = kind_of
        self.slots = Slots(slots)
        self.last: AnswerCache[EnvironmentStepped] = AnswerCache()
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
            self.give(work.step, CallFailed(FailureCode.DEADLINE, msg, True), work.record)

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
            self._answer(work, CallFailed(FailureCode.CLOSED, "nothing is open", False))
            return
        if session is None:
            session = AsyncSession(self, work)
            self.rollouts.setdefault(work.whose, group)[session.name] = session
        session.ask(work)

    def gone(self, session: AsyncSession) -> None:
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

    def slots_of(self, name: str, config_json: str) -> Wanted:
        """Return the slots of an environment, and those it needs besides. Raises WorkFailed."""
        kind = self.kind_of(name)
        beside = slots_beside(name, kind, config_json)
        return kind.slots, tuple(each for each in beside if each in self.slots.most)

    def replayable(self, name: str) -> bool:
        """Return True if an environment may be replayable: its history is asked for."""
        return self.kind_of(name).replayable is not False

    def slots_for(self, whose: RolloutKey, attempt: int) -> RolloutSlots:
        """Return the slots that all sessions of a rollout's attempt take from."""
        key = whose, attempt
        found = self._of_attempts.get(key)
        if found is None:
            found = self._of_attempts[key] = RolloutSlots(self.slots)
        return found

    def stands(self, more: int) -> None:
        """Change the number of steps that wait for a slot."""
        self.standing += more

    def _answer(self, work: SessionStep, body: Body | None) -> None:
        if work.claim():
            self.told(work, body)

    def told(self, work: SessionStep, body: Body | None) -> None:
        """Answer a claimed step; None leaves it to the next worker."""
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
