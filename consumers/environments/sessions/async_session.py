"""A session that waits: a task on the event loop, its queue of steps, and its slots."""

import asyncio
import secrets
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import structlog

from rollcall.consumers.environments.sessions.rollout_slots import RolloutSlots
from rollcall.consumers.environments.sessions.session_thread import (
    Body,
    Late,
    SessionStep,
    timed_answer,
)
from rollcall.sandbox.boxes.box_removal import Tell
from rollcall.sandbox.environment import AnyEnvironment
from rollcall.sandbox.sessions import Sessions, place_of
from rollcall.schemas.answer_cache import AnswerCache
from rollcall.schemas.errors import RollcallError, WorkFailed
from rollcall.schemas.ids import RolloutKey
from rollcall.schemas.messages import CallFailed, EnvironmentStepped, Instance

Wanted = tuple[tuple[str, ...], tuple[str, ...]]
"""Classes of slots: a session's own, and those needed beside it."""
NONE: Wanted = (), ()

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class SessionContext:
    """Shared services and callbacks of all async sessions."""

    make: Callable[[str, str, str], AnyEnvironment]
    """Makes an environment from name, config as JSON, and the session's place."""
    slots_of: Callable[[str, str], Wanted]
    """Returns the slots that a session of that name and config takes, and those beside it."""
    replayable: Callable[[str], bool | None]
    slots_for: Callable[[RolloutKey, int], RolloutSlots]
    """Returns the slots that all sessions of a rollout's attempt take from."""
    late: Late
    told: Callable[[SessionStep, Body | None], None]
    """Called once for each piece of work; None leaves it to the next worker."""
    gone: Callable[["AsyncSession"], None]
    """Called when a session takes no more work; its queue needs another session."""
    stands: Callable[[int], None]
    """Called with the change of the number of pieces of work that wait for a slot."""
    broke: Callable[[BaseException], None]
    note: Tell
    """Called with the events of waiting for slots."""
    last: AnswerCache[EnvironmentStepped]
    grace_s: float
    """Time in which cancelled work has to end, and the time limit of a close."""


class AsyncSession:
    """One session of one attempt: its environment lives in one task from start to end.

    It is created and used only on the event-loop thread.
    """

    def __init__(self, around: SessionContext, first: SessionStep) -> None:
        self.around = around
        self.rollout_id = first.rollout_id
        self.whose = first.whose
        self.name = first.step.session
        self.attempt = first.step.attempt
        self.place = place_of(first.step)
        self.partition = first.record.partition
        self.used_at = time.monotonic()
        self.inbox: deque[SessionStep] = deque()
        self.current: SessionStep | None = None
        self.began = 0.0
        self.over = False
        self.sessions = Sessions(self._make, around.last, around.replayable)
        self._in_line: tuple[str, ...] = ()
        """The slots that it waits for."""
        self._standing = 0
        self._in_line_s = 0.0
        """The time that its current step waited for slots."""
        self._slots = around.slots_for(self.whose, self.attempt)
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
            self._stop(CallFailed("closed", f"{self.place} was closed meanwhile", True))

    def end(self, answer: CallFailed | None = None) -> None:
        """Close, and cancel current work; all queued steps get this answer."""
        self.over = True
        while self.inbox:
            self._answer(self.inbox.popleft(), answer)
        self._count_standing()
        self.around.gone(self)
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
        return work is not None and now - self.began > work.timeout_s

    def _stop(self, answer: CallFailed | None) -> None:
        if self.current is not None:
            self._answer(self.current, answer)
            self._cancel()

    def _answer(self, work: SessionStep, body: Body | None) -> None:
        if work.claim():
            self.around.told(work, body)

    def _cancel(self) -> None:
        """Cancel the current work, and check later that it has ended."""
        self.task.cancel()
        loop = asyncio.get_running_loop()
        loop.call_later(self.around.grace_s, self._insist, self.current)

    def _insist(self, work: SessionStep | None) -> None:
        """Cancel again if the work has not ended; other sessions continue elsewhere meanwhile."""
        if self.task.done() or self.current is not work:
            return
        log.error("environment_not_ended", session=self.place, grace_s=self.around.grace_s)
        self.over = True
        self.around.gone(self)
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
                self.around.gone(self)
                await self._close()

    async def _close(self) -> None:
        """Release everything; a close that takes too long is cancelled too."""
        timer = asyncio.get_running_loop().call_later(self.around.grace_s, self._insist, None)
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
            self.around.broke(error)
            return
        msg = f"the environment ended its task: {type(error).__name__}"
        self.around.told(work, CallFailed("raised", msg, False))

    async def _serve(self, work: SessionStep) -> None:
        """Answer one step within its timeout."""
        self.current, self.began, self._in_line_s = work, time.monotonic(), 0.0
        left_s = max(0.0, work.timeout_s)  # NaN becomes 0 too: a foreign producer may write it
        timer = asyncio.get_running_loop().call_later(left_s, self._overdue, work)
        try:
            self._answer(work, self.around.late(work.step) or await self._do(work))
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

    async def _do(self, work: SessionStep) -> Body:
        step = work.step
        try:
            answer = await self.sessions.handle(step)
        except WorkFailed as error:
            return CallFailed(error.code, str(error), error.retriable)
        except RollcallError as error:
            return CallFailed("raised", str(error), False)
        timed = timed_answer(answer, work, self.began, self._in_line_s)
        if answer.terminated or answer.truncated:
            await self.sessions.finish(step)
        return timed

    def _overdue(self, work: SessionStep) -> None:
        """Answer a step that is past its timeout, and cancel it."""
        msg = f"no answer within {work.timeout_s:g} s; it was cancelled"
        if self._in_line:
            classes = " and ".join(map(repr, self._in_line))
            msg = f"no slot {classes} was free within {work.timeout_s:g} s"
        self._stop(CallFailed("deadline", msg, True))

    async def _make(self, name: str, config_json: str) -> AnyEnvironment:
        """Make an environment once its slots are taken."""
        wanted = self.around.slots_of(name, config_json)
        if wanted != self._taken:
            self._give_slots()
            await self._take_slots(wanted)
        return self.around.make(name, config_json, self.place)

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
                self._in_line_s += took_s
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
        self.around.note(Instance(turn, "", kind, "", "", "", "unknown", *whose, named, took_s))

    def _count_standing(self) -> None:
        """Update the count of steps that have not begun because they wait for a slot."""
        standing = 1 + len(self.inbox) if self._in_line else 0
        self.around.stands(standing - self._standing)
        self._standing = standing

    def _give_slots(self) -> None:
        taken, self._taken = self._taken, NONE
        self._slots.give(*taken)
