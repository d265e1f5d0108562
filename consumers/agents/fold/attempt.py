"""One attempt at a rollout: runs its program, opens its effects and applies their answers.

Errors of a program are returned as ProgramFailed, not raised: the caller of the attempt decides
what follows.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

from rollcall.consumers.agents.effects import (
    EFFECTS,
    Agent,
    AsCompleted,
    CallModel,
    Completed,
    Finish,
    Program,
    Step,
    Task,
    WishFailed,
)
from rollcall.consumers.agents.fold.attempt_effects import AttemptEffects, TokensReserved
from rollcall.consumers.agents.fold.checks import (
    check_as_completed,
    check_effects,
    check_finish,
)
from rollcall.consumers.agents.fold.context import DrawnOnce, FoldContext
from rollcall.consumers.agents.fold.conversation import recalled_as
from rollcall.consumers.agents.fold.outstanding import OutstandingEffect
from rollcall.schemas.errors import FailureCode, ProgramFailed
from rollcall.schemas.ids import call_seed
from rollcall.schemas.messages import (
    NO_POSITION,
    CallFailed,
    EnvironmentStepped,
    ModelAnswered,
    RolloutRequest,
)

FREE_FAILURES = {FailureCode.HISTORY_NEEDED, FailureCode.PREFIX_NEEDED}
"""Requests for more data, not failures of work: each counts as a try, but the first
one does not use one up."""
MOST_BUSY = 1000
"""Most answers of a full server at one position: each counts as a try, but uses none up, since no
work failed; further ones count as failures. A server holds each such answer back for a while, so
the bound takes hours to reach; it ends rollouts at a server that does not wait."""

Answer = ModelAnswered | EnvironmentStepped | CallFailed
Turn = list[OutstandingEffect] | Finish | ProgramFailed
"""The result of running a program: its new effects (none while it waits),
its end, or its failure."""


@dataclass(frozen=True, slots=True)
class OneAnswer:
    """A program that yielded a single effect: its answer is sent, its failure raised."""

    position: int


@dataclass(frozen=True, slots=True)
class AllAnswers:
    """A program that yielded a list: its answers are sent together, in the order of the list."""

    positions: range
    answers: dict[int, object]
    """The answers so far, by position."""


@dataclass(frozen=True, slots=True)
class NextOutcome:
    """A program that yielded an AsCompleted: the outcome that comes first in the log is sent."""


Awaited = OneAnswer | AllAnswers | NextOutcome


class Attempt(AttemptEffects):
    """One attempt at a rollout: runs the program, and resumes it with the answers it waits for."""

    __slots__ = ("agent", "awaited", "completed", "over", "world")

    def __init__(
        self,
        number: int,
        request: RolloutRequest,
        partition: int,
        world: FoldContext,
        rules: int = 0,
    ) -> None:
        super().__init__(number, request, partition, rules)
        self.world = world
        self.agent: Agent | None = None
        self.awaited: Awaited = NextOutcome()
        self.completed: deque[Completed] = deque()
        """Outcomes of other effects, in log order, that came while the program
        waited for something else."""
        self.over = False
        """True if the program is not resumed any more; answers to its open effects still count."""

    def begin_program(self, program: Program, now_ms: int) -> Turn:
        """Start the program; `now_ms` is the event's append time."""
        task = self.request.task
        seed = call_seed(self.request.seed_key, self.number, NO_POSITION)
        program_task = Task(
            prompt=task.prompt,
            system=task.system,
            environment=task.environment,
            max_turns=self.request.limits.max_turns,
            agent_config=self.request.agent_config,
            environment_config=self.request.task.environment_config,
            drawn=DrawnOnce(self.world.random_of, seed),
            max_tokens=self.request.limits.max_tokens,
            sampling=self.request.sampling,
            policy_id=self.request.policy_id,
            max_wishes=self.max_effects,
        )
        return self._advance(partial(self._first_effect, program), program_task, now_ms)

    def _first_effect(self, program: Program, task: Task) -> object:
        self.agent = program(task)
        if not hasattr(self.agent, "send"):
            msg = f"program {self.request.agent!r} is no generator; it must yield its effects"
            raise ProgramFailed(FailureCode.RUBBISH, msg)
        return next(self.agent)

    def close_program(self) -> None:
        """Close the generator; errors that it raises while closing are ignored."""
        if self.agent is not None and hasattr(self.agent, "close"):
            try:
                with self.world.guard:
                    self.agent.close()
            except BaseException as error:
                self.world.failure(self.request.agent, error)
        self.agent = None

    def _advance(self, resume: Callable[[Any], object], value: object, now_ms: int) -> Turn:
        """Run the program to its next effect, or to its end."""
        first, calls = self.next_position, self.model_calls
        turn: Turn
        try:
            with self.world.guard:
                turn = self._open_effects(resume, value, now_ms)
        except BaseException as error:  # a program may raise anything, even SystemExit
            turn = self.world.failure(self.request.agent, error)
        if not isinstance(turn, list):
            self.over = True
            # Its commands are sent only with a turn that is returned, so none has left yet.
            self.withdraw(first, calls)
        return turn

    def _open_effects(self, resume: Callable[[Any], object], value: object, now_ms: int) -> Turn:
        opened: list[OutstandingEffect] = []
        while True:
            try:
                yielded = resume(value)
            except StopIteration:
                yielded = Finish()
            if isinstance(yielded, EFFECTS):
                self.awaited = OneAnswer(self.next_position)
                opened.append(self.open_effect(yielded, now_ms))
                return opened
            if isinstance(yielded, Finish):
                return self._finished(check_finish(yielded))
            opened += self._open_all(yielded, now_ms)
            # An outcome that was kept answers an AsCompleted at once.
            if not isinstance(self.awaited, NextOutcome) or not self.completed:
                return opened
            resume, value = cast(Agent, self.agent).send, self.completed.popleft()

    def _finished(self, finish: Finish) -> Finish:
        for each in finish.recalled:
            policy_id = each.policy_id or self.request.policy_id
            self.conversations.append(recalled_as(each, policy_id, len(self.conversations)))
        return finish

    def _open_all(self, yielded: object, now_ms: int) -> list[OutstandingEffect]:
        """Open the effects of a yielded list or AsCompleted, to be carried out concurrently."""
        first, name = self.next_position, self.request.agent
        if not isinstance(yielded, AsCompleted):
            effects = check_effects(yielded, name, first)
            opened = self.open_concurrently(effects, now_ms)
            self.awaited = AllAnswers(range(first, self.next_position), {})
            return opened
        there = (waits.effect for waits in self.outstanding.values())
        effects = check_as_completed(yielded, there, name, first)
        opened = self.open_concurrently(effects, now_ms, self._refuse)
        self.awaited = NextOutcome()
        if not self.outstanding and not self.completed:
            msg = f"program {name!r} waits for the next outcome at position {first}; none is open"
            raise ProgramFailed(FailureCode.RUBBISH, msg)
        return opened

    def _refuse(self, effect: CallModel, error: TokensReserved) -> None:
        """Report to the program that a call was not made, like any other outcome."""
        self.completed.append(Completed(effect, WishFailed(FailureCode.TOKEN_LIMIT, str(error))))

    def apply_answer(
        self, waits: OutstandingEffect, answer: Answer, command_id: bytes, now_ms: int
    ) -> Turn:
        """Apply a fitting answer; resume the program when all effects that
        it waits for are answered."""
        if isinstance(answer, ModelAnswered):
            reply = self.record_answer(waits, answer, command_id, now_ms)
            return self._settle(waits, reply, now_ms)
        if isinstance(answer, EnvironmentStepped):
            return self._settle(waits, self.record_observation(waits, answer), now_ms)
        return self._failed(waits, answer, now_ms)

    def _failed(self, waits: OutstandingEffect, failure: CallFailed, now_ms: int) -> Turn:
        busy = failure.code == FailureCode.BUSY and waits.turned_away < MOST_BUSY
        waits.turned_away += busy
        history = failure.code in FREE_FAILURES and not waits.with_history
        # Every failure numbers a try, so that late answers are recognised; free ones use none up.
        free = busy or history
        if waits.sequence is not None:
            # A server that asks for prefixes often is sent them whole, which saves the round trip.
            waits.sequence.misses += failure.code == FailureCode.PREFIX_NEEDED
        self.failures += not free
        waits.failures += not free
        if failure.retriable and waits.failures < self.request.limits.max_tries:
            if history:
                self._send_history(waits)
            waits.try_again(now_ms)
            self.due_ms = min(self.due_ms, waits.deadline_ms())
            return [waits]
        if waits.sequence is not None:
            # A call that failed has extended nothing: another one may extend the conversation.
            waits.sequence.busy = False
        return self._settle(waits, WishFailed(failure.code, failure.message), now_ms)

    def _send_history(self, waits: OutstandingEffect) -> None:
        """Send the full history from now on; a step then reopens its
        environment, so its timeout grows."""
        if isinstance(waits.effect, Step) and not waits.with_history:
            waits.timeout_s += self.request.limits.open_timeout_s
        waits.with_history = True

    def _settle(self, waits: OutstandingEffect, answer: object, now_ms: int) -> Turn:
        """Close one effect; resume the program when all effects that it waits for are closed."""
        position, awaited = waits.position, self.awaited
        del self.outstanding[position]
        if self.over:  # the answer counts in the trajectory, but there is no program to resume
            return []
        agent = self.agent
        assert agent is not None
        if isinstance(awaited, OneAnswer) and position == awaited.position:
            if isinstance(answer, WishFailed):
                return self._advance(agent.throw, answer, now_ms)
            return self._advance(agent.send, answer, now_ms)
        if isinstance(awaited, AllAnswers) and position in awaited.positions:
            awaited.answers[position] = answer
            if len(awaited.answers) < len(awaited.positions):
                return []
            together = [awaited.answers[each] for each in awaited.positions]
            return self._advance(agent.send, together, now_ms)
        completed = Completed(cast(Any, waits.effect), cast(Any, answer))
        if isinstance(awaited, NextOutcome):
            return self._advance(agent.send, completed, now_ms)
        self.completed.append(completed)
        return []
