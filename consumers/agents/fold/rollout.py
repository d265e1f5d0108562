"""One open rollout: its attempts, the decisions about it, and its end.

A decision is written when it is made and takes effect when it is read back.
"""

from collections.abc import Sequence
from contextlib import suppress
from typing import Any, cast

from rollcall.consumers.agents.effects import Finish
from rollcall.consumers.agents.fold.attempt import Attempt, Turn
from rollcall.consumers.agents.fold.commands import (
    Command,
    command,
    command_identity,
    release_commands,
)
from rollcall.consumers.agents.fold.context import FoldContext
from rollcall.consumers.agents.fold.outstanding import PATIENCE, OutstandingEffect, whole_ms
from rollcall.consumers.agents.fold.phases import AttemptPhases
from rollcall.consumers.agents.fold.trajectory import Terminal, ended_trajectory
from rollcall.schemas.errors import DeterminismError, FailureCode, Refused
from rollcall.schemas.messages import (
    AttemptStarted,
    Body,
    CallFailed,
    DeadlinePassed,
    EnvironmentStepped,
    Event,
    RolloutCancelled,
    RolloutFinished,
    RolloutRequest,
    Trajectory,
)
from rollcall.schemas.untrusted_text import REASON_CHARS, clean_text, describe_exception

Output = Command | Event | Trajectory
Outcome = OutstandingEffect | Output
"""An output of an event, before effects are made into commands."""


class Rollout:
    """One open rollout: its current attempt, and the last decision about it."""

    __slots__ = (
        "admitted",
        "attempt",
        "broken",
        "deadline_written",
        "decision",
        "first_offset",
        "heard_ms",
        "partition",
        "phases",
        "request",
        "requested_ms",
        "rules",
        "runs_ms",
        "started_ms",
        "world",
        "writer",
    )

    def __init__(
        self,
        request: RolloutRequest,
        *,
        partition: int,
        offset: int,
        started_ms: int,
        requested_ms: int = 0,
        rules: int = 0,
        world: FoldContext,
        writer: str,
    ) -> None:
        self.request = request
        self.partition = partition
        self.first_offset = offset
        self.started_ms = started_ms
        self.requested_ms = requested_ms
        self.rules = rules
        self.phases = AttemptPhases(started_ms)
        self.world = world
        self.writer = writer
        self.deadline_written = False
        self.admitted = False
        """True if its user's quota lets it run; kept by the worker, not part of history."""
        self.runs_ms = started_ms
        """The time from which its own deadline counts: time in which a
        quota holds it is left out."""
        self.heard_ms = 0
        """The time of the first answer that counted; 0 before."""
        self._open_attempt(1)

    def _open_attempt(self, number: int) -> None:
        self.attempt = Attempt(number, self.request, self.partition, self.world, self.rules)
        self.broken = False
        self.decision: Event | None = None
        """The last decision, until it is read back or another attempt begins."""

    def begin_attempt(self, now_ms: int) -> Sequence[Outcome]:
        """Start the program of the current attempt; `now_ms` is the event's append time."""
        self.phases = AttemptPhases(now_ms)
        try:
            program = self.world.program_of(self.request.agent)
        except Refused as error:
            return self._fail(FailureCode.UNKNOWN_PROGRAM, str(error))
        return self._outcomes(self.attempt.begin_program(program, now_ms))

    def apply_event(self, event: Event, now_ms: int) -> Sequence[Outcome] | None:
        """Apply one answer or AttemptStarted; None if it does not count."""
        body = event.body
        if isinstance(body, AttemptStarted):
            return self._new_attempt(event.attempt, now_ms)
        attempt = self.attempt
        if event.attempt != attempt.number or self.broken:
            return None
        waits = attempt.outstanding.get(event.position)
        if waits is None and event.position < attempt.next_position:
            return None  # answered before: a command that was sent twice is answered twice
        if waits is not None and event.tries < waits.tries:
            return None  # an answer to an earlier try, after a failure of it was counted
        if waits is None or not waits.fits(event):
            return self._broken(_disagreement(event, waits, attempt))
        self.heard_ms = self.heard_ms or now_ms
        answer: Any = body  # only answers fit
        if isinstance(answer, EnvironmentStepped):
            self.phases.observe(answer, now_ms)
        lost = isinstance(answer, CallFailed) and answer.code == FailureCode.SESSION_LOST
        if lost and self._may_retry():
            del attempt.outstanding[waits.position]  # answered: nothing counts here now
            attempt.over = True
            return self._retry(answer.message)
        return self._outcomes(attempt.apply_answer(waits, answer, event.command_id, now_ms))

    def _outcomes(self, turn: Turn) -> Sequence[Outcome]:
        """Return the effects of a turn, or the decision that ends the rollout."""
        if isinstance(turn, list):
            return turn
        if isinstance(turn, Finish):
            return self._finish("finished", result=turn.result)
        return self._fail(turn.code, str(turn))

    def outputs(self, outcomes: Sequence[Outcome], *, silent: bool) -> list[Output]:
        """Return the outcomes with effects made into commands; if `silent` effects are left out."""
        if silent:
            return [outcome for outcome in outcomes if not isinstance(outcome, OutstandingEffect)]
        return [
            command(self.attempt, outcome) if isinstance(outcome, OutstandingEffect) else outcome
            for outcome in outcomes
        ]

    def resend(self) -> list[Output]:
        """Return the commands of all unanswered effects, and the decision
        that has not been read back."""
        attempt = self.attempt
        sent: list[Output] = [command(attempt, waits) for waits in attempt.outstanding.values()]
        return [*sent, self.decision] if self.decision else sent

    def at_first_command(self) -> bool:
        """Return True if no command has been answered yet."""
        return self.attempt.number == 1 and 0 in self.attempt.outstanding

    def restart_clock(self, now_ms: int) -> None:
        """Begin all deadlines now: the first command was held back until now."""
        self.runs_ms = now_ms
        for waits in self.attempt.outstanding.values():
            waits.opened_ms = now_ms

    def ends_ms(self) -> int:
        """Return the deadline of the rollout."""
        return self.runs_ms + whole_ms(self.request.limits.rollout_timeout_s)

    def overdue(self, now_ms: int) -> list[Event]:
        """Return the events to be written for deadlines that have passed; each is returned once."""
        attempt = self.attempt
        if now_ms < attempt.due_ms:
            return []
        if now_ms >= self.ends_ms():
            if self.deadline_written:
                return []
            self.deadline_written = True
            return [self._event(DeadlinePassed(self.request.limits.rollout_timeout_s))]
        unwritten = [w for w in attempt.outstanding.values() if not w.deadline_written]
        due = [(waits.deadline_ms(), waits) for waits in unwritten]
        # Until the next deadline, checks of this attempt cost one comparison.
        attempt.due_ms = min([self.ends_ms(), *(at for at, _ in due if now_ms < at)])
        return [self._late(waits) for at, waits in due if now_ms >= at]

    def _late(self, waits: OutstandingEffect) -> Event:
        waits.deadline_written = True
        reason = f"no answer within {PATIENCE * waits.timeout_s:g} s"
        body = CallFailed(FailureCode.DEADLINE, reason, True)
        return Event(*command_identity(self.attempt, waits), self.writer, body)

    def cancelled(self, reason: str, by: str = "") -> Event:
        """Return the event that ends this rollout when it is read back."""
        return self._event(RolloutCancelled(reason[:REASON_CHARS], by))

    def give_up(self, error: Exception) -> Event:
        """Return the decision to end a rollout that cannot continue because of an error.

        Its state stays as it is: answers still count until the end is read, here and elsewhere.
        """
        self._fail(FailureCode.BROKEN, f"the rollout cannot continue: {describe_exception(error)}")
        return cast(Event, self.decision)

    def _event(self, body: Body) -> Event:
        return Event.decision(self.request.rollout_id, self.attempt.number, self.writer, body)

    def _decide(self, decision: Event) -> list[Outcome]:
        self.decision = decision
        return [decision]

    def _finish(
        self, status: str, *, code: str = "", reason: str = "", result: str = ""
    ) -> list[Outcome]:
        positions = self.attempt.next_position
        reason = clean_text(reason, REASON_CHARS)
        return self._decide(
            self._event(RolloutFinished(status, clean_text(code), reason, result, positions))
        )

    def _fail(self, code: str, reason: str) -> list[Outcome]:
        return self._finish("failed", code=code, reason=reason)

    def _may_retry(self) -> bool:
        """Return True if its limits allow another attempt."""
        return self.attempt.number < self.request.limits.max_attempts

    def _retry(self, reason: str) -> list[Outcome]:
        number, body = self.attempt.number + 1, AttemptStarted(reason[:REASON_CHARS])
        return self._decide(Event.decision(self.request.rollout_id, number, self.writer, body))

    def _broken(self, error: DeterminismError) -> list[Outcome]:
        self.broken = True
        if self._may_retry():
            return self._retry(str(error))
        return self._fail(FailureCode.DETERMINISM, str(error))

    def _new_attempt(self, number: int, now_ms: int) -> list[Outcome] | None:
        if number != self.attempt.number + 1:
            return None
        # A new attempt opens its own sessions: those of the last one would hold slots for nothing.
        closing = release_commands(self.attempt)
        self.attempt.close_program()
        self._open_attempt(number)
        return [*closing, *self.begin_attempt(now_ms)]

    def end(self, body: Terminal, offset: int, now_ms: int) -> tuple[Trajectory, list[Command]]:
        """Return the trajectory of a counted terminal event, and commands
        that close all that is open."""
        closing: list[Command] = []
        with suppress(Exception):  # only saves work elsewhere
            closing = release_commands(self.attempt)
        self.attempt.close_program()
        trajectory = ended_trajectory(
            self.attempt,
            body,
            first_offset=self.first_offset,
            last_offset=offset,
            started_ms=self.started_ms,
            ended_ms=now_ms,
            timers=self.phases.timers(self.requested_ms, self.started_ms, now_ms),
        )
        return trajectory, closing


def _disagreement(
    event: Event, waits: OutstandingEffect | None, attempt: Attempt
) -> DeterminismError:
    """Return the error of an answer that does not fit the program's effects."""
    answer = type(event.body).__name__
    if waits is None:
        effects = f"has made {attempt.next_position} effects"
    elif event.body_digest != waits.digest or event.tries > waits.tries:
        effects = (
            f"asks for {type(waits.effect).__name__} {waits.digest.hex()[:8]}, try {waits.tries}"
        )
    else:
        effects = f"asks for {type(waits.effect).__name__}"
    return DeterminismError(
        f"rollout {event.rollout_id} attempt {event.attempt} position {event.position}: the "
        f"journal answers {answer} {event.body_digest.hex()[:8]}, try {event.tries}, but "
        f"program {attempt.request.agent!r} {effects}; has the program changed? run it under a new "
        "name"
    )
