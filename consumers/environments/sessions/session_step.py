"""A step in work, and its answer, the same for sessions on threads and on the event loop.

The two engines differ in what a session costs. A plain environment runs on a thread that many
rollouts share, and a hung step loses that thread; an environment that waits has a task, and a late
step is cancelled. Plain environments on the event loop, each call on a thread of a pool, would be
one engine; it took 88 instead of 16 microseconds of CPU a step (64 rollouts, two cores).
"""

import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from rollcall.consumers.log.protocols import Record
from rollcall.sandbox.sessions import Sessions, make_stepped
from rollcall.schemas.errors import FailureCode, ProgramFailed, RollcallError, WorkFailed
from rollcall.schemas.ids import rollout_of
from rollcall.schemas.messages import CallFailed, EnvironmentStep, EnvironmentStepped

Body = EnvironmentStepped | CallFailed
Give = Callable[[EnvironmentStep, Body, Record], None]
Late = Callable[[EnvironmentStep], CallFailed | None]
"""Returns the answer to a step that is too late to begin, else None."""
REAP_EVERY_S = 30.0


@dataclass(frozen=True, slots=True)
class SessionTimes:
    """Time limits for the sessions of a worker and the work in them, in seconds."""

    lease_s: float = 3600.0
    """A session without a step for this time ends: by default the longest time of a rollout, after
    which no more steps can come."""
    slow_s: float = 1.0
    """A step on a shared thread that takes longer has the other sessions moved away."""
    close_s: float = 60.0
    """Time limit for closing the sessions of a partition, or those that lapsed."""
    grace_s: float = 10.0
    """Time for a cancelled step, or a close, of an async session until it is left alone."""


class SessionStep:
    """One step in work; its session or the watch answers it, whichever claims it first."""

    __slots__ = (
        "_claimed",
        "_lock",
        "began",
        "in_line_s",
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
        self.began = 0.0
        self.in_line_s = 0.0
        """The time that it has waited for slots, since it began."""
        self._lock = lock
        self._claimed = False

    def claim(self) -> bool:
        with self._lock:
            claimed, self._claimed = self._claimed, True
        return not claimed

    def overdue(self, now: float) -> bool:
        """Return True if it is past its timeout."""
        return now - self.began > self.timeout_s


async def answer_to(
    work: SessionStep, sessions: Sessions, within: AbstractContextManager[object] | None = None
) -> Body:
    """Run a step in its session; return the answer, with its times. `within` may end it in time."""
    step = work.step
    try:
        with within or nullcontext():
            answer = await sessions.handle(step, partition=work.record.partition, now=work.began)
    except ProgramFailed as error:
        return CallFailed(FailureCode.DEADLINE, str(error), True)
    except WorkFailed as error:
        return CallFailed(error.code, str(error), error.retriable)
    except RollcallError as error:
        return CallFailed(FailureCode.RAISED, str(error), False)
    timed = make_stepped(
        answer.text,
        answer.reward,
        answer.terminated,
        answer.truncated,
        answer.info,
        answer.index,
        answer.session,
        answer.claim,
        work.began - work.taken_at + work.in_line_s,
        time.monotonic() - work.began - work.in_line_s,
    )
    if answer.terminated or answer.truncated:
        await sessions.finish(step)
    return timed
