"""One attempt at a rollout: runs its program, opens its effects and applies their answers.

Errors of a program are returned as ProgramFailed, not raised: the caller of the attempt decides
what follows.
"""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, cast

from rollcall.consumers.agents.effects import (
    EFFECTS,
    Agent,
    AsCompleted,
    CallModel,
    Completed,
    EnvironmentAnswer,
    Finish,
    ModelAnswer,
    Program,
    Reset,
    Step,
    Task,
    WishFailed,
    make_message,
)
from rollcall.consumers.agents.fold.checks import (
    check_as_completed,
    check_effects,
    check_finish,
)
from rollcall.consumers.agents.fold.context import DrawnOnce, FoldContext
from rollcall.consumers.agents.fold.conversation import Conversation, recalled_as
from rollcall.consumers.agents.fold.effect_digests import environment_of, serialised_sampling
from rollcall.consumers.agents.fold.open_effects import (
    TokensReserved,
    open_concurrently,
    open_effect,
)
from rollcall.consumers.agents.fold.outstanding import OutstandingEffect
from rollcall.schemas.errors import ProgramFailed
from rollcall.schemas.ids import call_seed
from rollcall.schemas.message_code import maker
from rollcall.schemas.messages import (
    NO_POSITION,
    CallFailed,
    EnvironmentStepped,
    ModelAnswered,
    RolloutRequest,
    StepTaken,
)
from rollcall.schemas.packed_rows import PackedRows

# Made for every turn.
make_model_answer = maker(ModelAnswer)
make_environment_answer = maker(EnvironmentAnswer)
make_step_taken = maker(StepTaken)

POSITIONS_PER_TURN = 8
"""A program that never calls a model is ended after this many effects per allowed turn, unless its
limits name another number."""
FREE_FAILURES = {"history_needed", "prefix_needed"}
"""Requests for more data, not failures of work: each counts as a try, but the first
one does not use one up."""
BUSY = "busy"
"""The code of a server that is full. It is no failure of work: it counts as
a try, but uses none up."""
MOST_BUSY = 1000
"""Most busy answers at one position; further ones count as failures. A server holds each
such answer back for a while, so the bound takes hours to reach; it ends rollouts at a
server that does not wait."""

Answer = ModelAnswered | EnvironmentStepped | CallFailed
StepRow = tuple[int, str, str | None, str, float, bool, bool, str]
"""A StepTaken, field by field."""
Turn = list[OutstandingEffect] | Finish | ProgramFailed
"""The result of running a program: its new effects (none while it waits),
its end, or its failure."""


@dataclass(slots=True)
class Session:
    """One environment session of an attempt, according to the journal."""

    reset: OutstandingEffect
    """The effect that opened it, as it stood when it was answered."""
    environment: str
    environment_config: str
    seed: int
    since: int
    """The number of steps of its attempt when it was opened."""
    applied: int = 0
    """The number of actions applied to it."""
    done: bool = False


class Attempt:
    """One attempt at a rollout: its program, its outstanding effects, and the answers so far."""

    __slots__ = (
        "agent",
        "answers",
        "awaited",
        "completed",
        "conversations",
        "due_ms",
        "failures",
        "how_asked",
        "max_effects",
        "model_calls",
        "next_position",
        "number",
        "outstanding",
        "over",
        "partition",
        "request",
        "rules",
        "sampled_tokens",
        "sessions",
        "steps",
        "world",
    )  # fmt: skip

    def __init__(
        self,
        number: int,
        request: RolloutRequest,
        partition: int,
        world: FoldContext,
        rules: int = 0,
    ) -> None:
        self.number = number
        self.rules = rules
        self.request = request
        self.partition = partition
        self.world = world
        self.agent: Agent | None = None
        self.outstanding: dict[int, OutstandingEffect] = {}
        self.awaited: list[int] | int | None = []
        """Positions of the effects that the program waits for; a number where it yielded a single
        effect, None where it waits for whichever completes next."""
        self.answers: dict[int, object] = {}
        self.completed: deque[Completed] = deque()
        """Outcomes of other effects, in log order, that came while the program
        waited for something else."""
        self.over = False
        """True if the program is not resumed any more; answers to its open effects still count."""
        self.conversations: list[Conversation] = []
        self.sessions: dict[str, Session] = {}
        self.steps: PackedRows[StepRow] = PackedRows()
        limits = request.limits
        self.max_effects = limits.max_wishes or (limits.max_turns + 1) * POSITIONS_PER_TURN
        self.next_position = 0
        self.model_calls = 0
        self.sampled_tokens = 0
        self.failures = 0
        self.how_asked = serialised_sampling(request.sampling)
        """Computed once, as nearly every call uses the request's sampling."""
        self.due_ms = 0
        """No deadline passes before this time, so that most attempts can be
        skipped in deadline checks."""

    def begin(self, program: Program, now_ms: int) -> Turn:
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
            msg = f"program {self.request.agent!r} is no generator; it must yield its wishes"
            raise ProgramFailed("rubbish", msg)
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

    def _advance(self, resume: Callable[[Any], object], told: object, now_ms: int) -> Turn:
        """Run the program to its next effect, or to its end."""
        first, calls = self.next_position, self.model_calls
        came_to: Turn
        try:
            with self.world.guard:
                came_to = self._open_effects(resume, told, now_ms)
        except BaseException as error:
            came_to = self.world.failure(self.request.agent, error)
        if not isinstance(came_to, list):
            self.over = True
            self._withdraw(first, calls)
        return came_to

    def _open_effects(self, resume: Callable[[Any], object], told: object, now_ms: int) -> Turn:
        opened: list[OutstandingEffect] = []
        while True:
            try:
                yielded = resume(told)
            except StopIteration:
                yielded = Finish()
            if isinstance(yielded, EFFECTS):
                self.awaited = self.next_position
                opened.append(open_effect(self, yielded, now_ms))
                return opened
            if isinstance(yielded, Finish):
                return self._finished(check_finish(yielded))
            opened += self._open_all(yielded, now_ms)
            # An outcome that was kept answers an AsCompleted at once.
            if self.awaited is not None or not self.completed:
                return opened
            resume, told = cast(Agent, self.agent).send, self.completed.popleft()

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
            opened = open_concurrently(self, effects, now_ms)
            self.awaited = list(range(first, self.next_position))
            return opened
        there = (waits.effect for waits in self.outstanding.values())
        effects = check_as_completed(yielded, there, name, first)
        opened = open_concurrently(self, effects, now_ms, self._refuse)
        self.awaited = None
        if not self.outstanding and not self.completed:
            msg = f"program {name!r} waits for the next outcome at position {first}; none is open"
            raise ProgramFailed("rubbish", msg)
        return opened

    def _refuse(self, effect: CallModel, error: TokensReserved) -> None:
        """Report to the program that a call was not made, like any other outcome."""
        self.completed.append(Completed(effect, WishFailed("token_limit", str(error))))

    def _withdraw(self, first: int, model_calls: int) -> None:
        """Discard the effects of a turn that failed; their commands were never sent."""
        self.outstanding = {at: waits for at, waits in self.outstanding.items() if at < first}
        self.next_position, self.model_calls = first, model_calls

    def take(
        self, waits: OutstandingEffect, answer: Answer, command_id: bytes, now_ms: int
    ) -> Turn:
        """Apply a fitting answer; resume the program when all effects that
        it waits for are answered."""
        if isinstance(answer, ModelAnswered):
            said = self._answered(waits, answer, command_id, now_ms)
            return self._settle(waits, said, now_ms)
        if isinstance(answer, EnvironmentStepped):
            return self._settle(waits, self._observed(waits, answer), now_ms)
        return self._failed(waits, answer, now_ms)

    def _failed(self, waits: OutstandingEffect, failure: CallFailed, now_ms: int) -> Turn:
        busy = failure.code == BUSY and waits.turned_away < MOST_BUSY
        waits.turned_away += busy
        history = failure.code in FREE_FAILURES and not waits.with_history
        # Every failure numbers a try, so that late answers are recognised; free ones use none up.
        free = busy or history
        if waits.sequence is not None:
            waits.sequence.misses += failure.code == "prefix_needed"
        self.failures += not free
        waits.failures += not free
        if failure.retriable and waits.failures < self.request.limits.max_tries:
            if history:
                self._send_history(waits)
            waits.try_again(now_ms)
            self.due_ms = min(self.due_ms, waits.deadline_ms())
            return [waits]
        if waits.sequence is not None:
            waits.sequence.busy = False
        return self._settle(waits, WishFailed(failure.code, failure.message), now_ms)

    def _send_history(self, waits: OutstandingEffect) -> None:
        """Send the full history from now on; a step then reopens its
        environment, so its timeout grows."""
        if isinstance(waits.effect, Step) and not waits.with_history:
            waits.timeout_s += self.request.limits.open_timeout_s
        waits.with_history = True

    def _answered(
        self, waits: OutstandingEffect, body: ModelAnswered, command_id: bytes, now_ms: int
    ) -> ModelAnswer:
        effect, sequence, sampling = waits.effect, waits.sequence, waits.sampling
        assert isinstance(effect, CallModel)
        assert sequence is not None
        assert sampling is not None
        reply = make_message("assistant", body.text, body.tool_calls)
        sequence.take(waits.new, body, reply, sampling)
        sequence.busy = False
        sampled = len(body.token_ids) // 4 if sampling.max_tokens else 0  # else it only counted
        self.sampled_tokens += sampled
        prompt = sequence.length - len(body.token_ids) // 4
        tokens = b"", b"", b""
        if effect.with_tokens:
            tokens = sequence.packed()[: 4 * prompt], body.token_ids, body.logprobs
        return make_model_answer(
            reply, body.finish_reason, command_id, now_ms, prompt, sampled, *tokens, body.stopped_by
        )

    def _observed(self, waits: OutstandingEffect, body: EnvironmentStepped) -> EnvironmentAnswer:
        effect, action = waits.effect, None
        if isinstance(effect, Reset):
            # A session may be opened again: its actions are those after this opening.
            environment = environment_of(effect, self.request.task)
            session = self.sessions[effect.session] = Session(waits, *environment, len(self.steps))
        else:
            assert isinstance(effect, Step)
            action, session = effect.action, self.sessions[effect.session]
            session.applied += 1
        session.done = body.terminated or body.truncated
        self.steps.append(
            (
                waits.position,
                effect.session,
                action,
                body.text,
                body.reward,
                body.terminated,
                body.truncated,
                body.info,
            )
        )
        return make_environment_answer(
            body.text, body.reward, body.terminated, body.truncated, body.info
        )

    def steps_taken(self) -> Iterator[StepTaken]:
        """Return all steps, in log order."""
        return (make_step_taken(*row) for row in self.steps)

    def actions_of(self, name: str) -> tuple[str, ...]:
        """Return the actions of an open session since it was opened."""
        since = islice(self.steps_taken(), self.sessions[name].since, None)
        return tuple(
            taken.action for taken in since if taken.session == name and taken.action is not None
        )

    def _settle(self, waits: OutstandingEffect, answer: object, now_ms: int) -> Turn:
        """Close one effect; resume the program when all effects that it waits for are closed."""
        position, awaited = waits.position, self.awaited
        del self.outstanding[position]
        if self.over:
            return []
        agent = self.agent
        assert agent is not None
        if position == awaited:
            if isinstance(answer, WishFailed):
                return self._advance(agent.throw, answer, now_ms)
            return self._advance(agent.send, answer, now_ms)
        if not isinstance(awaited, list) or position not in awaited:
            completed = Completed(cast(Any, waits.effect), cast(Any, answer))
            if awaited is None:
                return self._advance(agent.send, completed, now_ms)
            self.completed.append(completed)
            return []
        self.answers[position] = answer
        if any(position not in self.answers for position in awaited):
            return []
        together = [self.answers.pop(position) for position in awaited]
        return self._advance(agent.send, together, now_ms)
