"""One attempt at a rollout: its program runs, wishes, waits and learns.

Whatever a program does wrong comes back as ProgramFailed, by value: whoever runs the attempt
decides what that means.
"""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, cast

from consumers.agents.fold.bodies import environment_of, spelt
from consumers.agents.fold.checks import (
    check_as_completed,
    check_finish,
    check_wishes,
)
from consumers.agents.fold.conversation import Conversation, recalled_as
from consumers.agents.fold.openings import Reserved, open_together, open_wish
from consumers.agents.fold.outstanding import Outstanding
from consumers.agents.fold.world import DrawnOnce, World
from consumers.agents.wishes import (
    WISHES,
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
from schemas.errors import ProgramFailed
from schemas.ids import call_seed
from schemas.message_code import maker
from schemas.messages import (
    NO_POSITION,
    CallFailed,
    EnvironmentStepped,
    ModelAnswered,
    RolloutRequest,
    StepTaken,
)
from schemas.packed_rows import PackedRows

# Made for every turn.
make_model_answer = maker(ModelAnswer)
make_environment_answer = maker(EnvironmentAnswer)
make_step_taken = maker(StepTaken)

POSITIONS_PER_TURN = 8
"""A program that never calls a model is ended after this many wishes per allowed turn, unless its
limits name another number."""
FREE_FAILURES = {"history_needed", "prefix_needed"}
"""Requests for more, not failures of work: they number a try but, the first time, use none up."""
BUSY = "busy"
"""A server that is full, not a failure of work: it numbers a try and uses none up."""
MOST_BUSY = 1000
"""So often at one position; more count as failures. A server holds each such answer back for a
while, so that is hours, but what has another one's manners must not keep a rollout for ever."""

Answer = ModelAnswered | EnvironmentStepped | CallFailed
StepRow = tuple[int, str, str | None, str, float, bool, bool, str]
"""A StepTaken, field by field."""
Turn = list[Outstanding] | Finish | ProgramFailed
"""What a program came to: wishes (none while it waits for others), its end, or its failure."""


@dataclass(slots=True)
class Session:
    """One environment of an attempt, as far as the journal tells."""

    reset: Outstanding
    """The wish that opened it, as it stood when it was answered."""
    environment: str
    environment_config: str
    seed: int
    since: int
    """How many steps its attempt had taken when it was opened."""
    applied: int = 0
    """How many actions it has been told."""
    done: bool = False


class Attempt:
    """One attempt at a rollout: its program, what it waits for, and what it has learned."""

    __slots__ = (
        "agent", "answers", "completed", "conversations", "due_ms", "failures", "how_asked",
        "model_calls", "most_wishes", "next_position", "number", "outstanding", "over", "partition",
        "request", "rules", "sampled_tokens", "sessions", "steps", "wished", "world",
    )  # fmt: skip

    def __init__(
        self, number: int, request: RolloutRequest, partition: int, world: World, rules: int = 0
    ) -> None:
        self.number = number
        self.rules = rules
        self.request = request
        self.partition = partition
        self.world = world
        self.agent: Agent | None = None
        self.outstanding: dict[int, Outstanding] = {}
        self.wished: list[int] | int | None = []
        """Where the wishes are that the program waits for; a number where it yielded no list, None
        where it waits for whatever comes next."""
        self.answers: dict[int, object] = {}
        self.completed: deque[Completed] = deque()
        """What came of other wishes, in log order, while the program waited for something else."""
        self.over = False
        """Whether the program is not gone on with; what it still waits for counts all the same."""
        self.conversations: list[Conversation] = []
        self.sessions: dict[str, Session] = {}
        self.steps: PackedRows[StepRow] = PackedRows()
        limits = request.limits
        self.most_wishes = limits.max_wishes or (limits.max_turns + 1) * POSITIONS_PER_TURN
        self.next_position = 0
        self.model_calls = 0
        self.sampled_tokens = 0
        self.failures = 0
        self.how_asked = spelt(request.sampling)
        """Made once: nearly every call is sampled as the request asks."""
        self.due_ms = 0
        """Nothing is overdue before; most attempts need not be looked at when deadlines are due."""

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
            max_wishes=self.most_wishes,
        )
        return self._advance(partial(self._first_wish, program), program_task, now_ms)

    def _first_wish(self, program: Program, task: Task) -> object:
        self.agent = program(task)
        if not hasattr(self.agent, "send"):
            msg = f"program {self.request.agent!r} is no generator; it must yield its wishes"
            raise ProgramFailed("rubbish", msg)
        return next(self.agent)

    def close_program(self) -> None:
        """Let the generator go; whatever it does on the way out is its own affair."""
        if self.agent is not None and hasattr(self.agent, "close"):
            try:
                with self.world.guard:
                    self.agent.close()
            except BaseException as error:
                self.world.failure(self.request.agent, error)
        self.agent = None

    def _advance(self, resume: Callable[[Any], object], told: object, now_ms: int) -> Turn:
        """Run the program to its next wish, or to its end."""
        first, calls = self.next_position, self.model_calls
        came_to: Turn
        try:
            with self.world.guard:
                came_to = self._wishes(resume, told, now_ms)
        except BaseException as error:
            came_to = self.world.failure(self.request.agent, error)
        if not isinstance(came_to, list):
            self.over = True
            self._withdraw(first, calls)
        return came_to

    def _wishes(self, resume: Callable[[Any], object], told: object, now_ms: int) -> Turn:
        opened: list[Outstanding] = []
        while True:
            try:
                yielded = resume(told)
            except StopIteration:
                yielded = Finish()
            if isinstance(yielded, WISHES):
                self.wished = self.next_position
                opened.append(open_wish(self, yielded, now_ms))
                return opened
            if isinstance(yielded, Finish):
                return self._finished(check_finish(yielded))
            opened += self._open_all(yielded, now_ms)
            if self.wished is not None or not self.completed:
                return opened
            resume, told = cast(Agent, self.agent).send, self.completed.popleft()

    def _finished(self, finish: Finish) -> Finish:
        for each in finish.recalled:
            policy_id = each.policy_id or self.request.policy_id
            self.conversations.append(recalled_as(each, policy_id, len(self.conversations)))
        return finish

    def _open_all(self, yielded: object, now_ms: int) -> list[Outstanding]:
        """What was yielded to be carried out side by side."""
        first, name = self.next_position, self.request.agent
        if not isinstance(yielded, AsCompleted):
            wishes = check_wishes(yielded, name, first)
            opened = open_together(self, wishes, now_ms)
            self.wished = list(range(first, self.next_position))
            return opened
        there = (waits.wish for waits in self.outstanding.values())
        wishes = check_as_completed(yielded, there, name, first)
        opened = open_together(self, wishes, now_ms, self._refuse)
        self.wished = None
        if not self.outstanding and not self.completed:
            msg = f"program {name!r} waits for the next outcome at position {first}; none is open"
            raise ProgramFailed("rubbish", msg)
        return opened

    def _refuse(self, wish: CallModel, error: Reserved) -> None:
        """Let the program hear, as of any other outcome, that a call was not made."""
        self.completed.append(Completed(wish, WishFailed("token_limit", str(error))))

    def _withdraw(self, first: int, model_calls: int) -> None:
        """Forget wishes that were spoilt by another one or by their guard: nobody heard them."""
        self.outstanding = {at: waits for at, waits in self.outstanding.items() if at < first}
        self.next_position, self.model_calls = first, model_calls

    def take(self, waits: Outstanding, answer: Answer, command_id: bytes, now_ms: int) -> Turn:
        """Apply an answer that fits; the program goes on when what it waits for is answered."""
        if isinstance(answer, ModelAnswered):
            said = self._answered(waits, answer, command_id, now_ms)
            return self._settle(waits, said, now_ms)
        if isinstance(answer, EnvironmentStepped):
            return self._settle(waits, self._observed(waits, answer), now_ms)
        return self._failed(waits, answer, now_ms)

    def _failed(self, waits: Outstanding, failure: CallFailed, now_ms: int) -> Turn:
        busy = failure.code == BUSY and waits.turned_away < MOST_BUSY
        waits.turned_away += busy
        history = failure.code in FREE_FAILURES and not waits.with_history
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

    def _send_history(self, waits: Outstanding) -> None:
        """From now on with all there is; a step is then an opening too, and takes as long."""
        if isinstance(waits.wish, Step) and not waits.with_history:
            waits.timeout_s += self.request.limits.open_timeout_s
        waits.with_history = True

    def _answered(
        self, waits: Outstanding, body: ModelAnswered, command_id: bytes, now_ms: int
    ) -> ModelAnswer:
        wish, sequence, sampling = waits.wish, waits.sequence, waits.sampling
        assert isinstance(wish, CallModel)
        assert sequence is not None
        assert sampling is not None
        reply = make_message("assistant", body.text, body.tool_calls)
        sequence.take(waits.new, body, reply, sampling)
        sequence.busy = False
        sampled = len(body.token_ids) // 4 if sampling.max_tokens else 0  # else it only counted
        self.sampled_tokens += sampled
        prompt = sequence.length - len(body.token_ids) // 4
        tokens = b"", b"", b""
        if wish.with_tokens:
            tokens = sequence.packed()[: 4 * prompt], body.token_ids, body.logprobs
        return make_model_answer(
            reply, body.finish_reason, command_id, now_ms, prompt, sampled, *tokens, body.stopped_by
        )

    def _observed(self, waits: Outstanding, body: EnvironmentStepped) -> EnvironmentAnswer:
        wish, action = waits.wish, None
        if isinstance(wish, Reset):
            environment = environment_of(wish, self.request.task)
            session = self.sessions[wish.session] = Session(waits, *environment, len(self.steps))
        else:
            assert isinstance(wish, Step)
            action, session = wish.action, self.sessions[wish.session]
            session.applied += 1
        session.done = body.terminated or body.truncated
        self.steps.append(
            (
                waits.position,
                wish.session,
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
        """All of its steps, in log order."""
        return (make_step_taken(*row) for row in self.steps)

    def actions_of(self, name: str) -> tuple[str, ...]:
        """What an open session has been told since it was opened."""
        since = islice(self.steps_taken(), self.sessions[name].since, None)
        return tuple(
            taken.action for taken in since if taken.session == name and taken.action is not None
        )

    def _settle(self, waits: Outstanding, answer: object, now_ms: int) -> Turn:
        """Close one wish; when all that the program waits for are closed, it goes on."""
        position, wished = waits.position, self.wished
        del self.outstanding[position]
        if self.over:
            return []
        agent = self.agent
        assert agent is not None
        if position == wished:
            if isinstance(answer, WishFailed):
                return self._advance(agent.throw, answer, now_ms)
            return self._advance(agent.send, answer, now_ms)
        if not isinstance(wished, list) or position not in wished:
            completed = Completed(cast(Any, waits.wish), cast(Any, answer))
            if wished is None:
                return self._advance(agent.send, completed, now_ms)
            self.completed.append(completed)
            return []
        self.answers[position] = answer
        if any(position not in self.answers for position in wished):
            return []
        together = [self.answers.pop(position) for position in wished]
        return self._advance(agent.send, together, now_ms)
