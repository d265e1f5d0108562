"""The fold: a rollout's journal and nothing else decides its history.

Events go in, in log order; out come the messages they give rise to: commands (ModelCall,
EnvironmentStep), decisions to be written into the journal (Event) and the Trajectory of a rollout
that has ended. State changes when an event is read, never when it is written: a decision acts when
it is read back.

An answer counts if its attempt is the current one and its command is outstanding and unanswered:
the first event per (position, try), where try is the number of failures counted at that position.
Anything else is ignored and counted in `Journal.ignored`. An answer that the program never asked
for, or asked for with another body, is a DeterminismError: that attempt is over.

Two walls keep what goes wrong inside one rollout: `Rollout._walled` around all that touches a
program, `Journal.take` around the rest. Behind either the rollout stands still: its end, failed, is
a decision like any other, and every reader comes to the same one or waits for it in the log.
"""

from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import cache, partial
from hashlib import blake2b
from heapq import nsmallest
from itertools import islice
from typing import TYPE_CHECKING, TypeVar, cast

from consumers.agents.watermark import MOST_STRAGGLERS, Watermark
from consumers.agents.wishes import (
    WISHES,
    Agent,
    Begun,
    CallModel,
    EnvironmentAnswer,
    Finish,
    ModelAnswer,
    Program,
    Reset,
    Step,
    Task,
    Wish,
    WishFailed,
)
from schemas import messages as wire
from schemas.errors import DeterminismError, ProgramFailed, Refused
from schemas.foreign_text import REASON_CHARS, plain, raised, shown
from schemas.ids import call_seed, command_id, prefix_hash
from schemas.interrupts import is_from_outside
from schemas.messages import (
    AttemptStarted,
    CallFailed,
    DeadlinePassed,
    EnvironmentStep,
    EnvironmentStepped,
    Event,
    Message,
    ModelAnswered,
    ModelCall,
    RolloutCancelled,
    RolloutFinished,
    RolloutRefused,
    RolloutRequest,
    RolloutStarted,
    Sampling,
    StepTaken,
    Trajectory,
    maker,
)

if TYPE_CHECKING:
    from random import Random

T = TypeVar("T")
Command = ModelCall | EnvironmentStep
Effect = Command | Event | Trajectory
Terminal = RolloutFinished | RolloutCancelled | DeadlinePassed
# As tuples: `isinstance` with A | B makes the union anew each time.
START = (RolloutStarted, RolloutRefused)
END = (RolloutFinished, RolloutCancelled, DeadlinePassed)

# Made for every turn.
make_call = maker(ModelCall)
make_step = maker(EnvironmentStep)
make_step_taken = maker(StepTaken)
make_message = maker(Message)

NO_POSITION = -1
POSITIONS_PER_TURN = 8
"""A program that never calls a model is ended after this many wishes per allowed turn."""
FREE_FAILURES = {"history_needed", "prefix_needed"}
"""Requests for more, not failures of work: they number a try but, the first time, use none up."""
RESULT_CHARS = 200_000
"""A result above this would not fit into the journal; it belongs into a file."""
PATIENCE = 2.5
"""In timeouts of a command: one to be begun in, one to be carried out in, half for the ways. Were
its owner to give up when it may just be begun, a full server would work for nobody."""
LONG_PREFIX = 1024
"""Tokens; where a prefix is longer, a call names it, for the server that answered last holds it."""
MISS_EVERY = 16
"""Answers to a question for a prefix; servers that ask more often, or always, are sent it whole."""
FEW_RECORDS = 20_000
"""Folded in a second; a reader that has no more to read needs no stragglers named."""
FAR_MS = 10**13
"""Three hundred years: a timeout beyond is as good as none, and fits every clock."""


@dataclass(frozen=True, slots=True)
class World:
    """What the fold is given from outside; none of it may depend on time or settings."""

    program_of: Callable[[str], Program]
    """Raises Refused for a program that is not there."""
    random_of: Callable[[int], "Random"]
    guard: AbstractContextManager[object] = field(default_factory=nullcontext)
    """Entered around every turn of a program; may raise ProgramFailed inside it."""


@dataclass(slots=True)
class Outstanding:
    """One wish whose answer has not been counted yet."""

    wish: Wish
    position: int
    digest: bytes
    opened_ms: int
    sequence: "Conversation | None"
    new: tuple[Message, ...] = ()
    sampling: Sampling | None = None
    tries: int = 0
    failures: int = 0
    with_history: bool = False
    """Whether all there is was asked for and is sent."""
    told: bool = False
    """Whether its deadline was already written; forgotten in a crash, harmlessly."""

    def fits(self, event: Event) -> bool:
        """Whether the event answers just this wish and try."""
        if event.body_digest != self.digest or event.tries > self.tries:
            return False
        body = event.body
        return isinstance(body, CallFailed) or (
            isinstance(body, ModelAnswered) == isinstance(self.wish, CallModel)
        )


Outcome = Outstanding | Effect
"""What an event gives rise to, as long as wishes have not been made into commands."""


class Conversation:
    """One token sequence that is only ever extended, and the same as messages."""

    __slots__ = (
        "answers", "begun", "busy", "hash", "index", "length", "messages", "misses", "policy_id",
        "samplings",
    )  # fmt: skip

    def __init__(
        self, index: int, policy_id: str, messages: Sequence[Message] = (), begun: bytes = b""
    ) -> None:
        self.index = index
        self.policy_id = policy_id
        self.messages: list[Message] = list(messages)
        self.answers: list[ModelAnswered] = []
        self.samplings: list[Sampling] = []
        """How each answer was asked for."""
        self.begun = begun
        """Tokens that were there before the first answer; they stand for the first messages."""
        self.length = len(begun) // 4
        self.hash = prefix_hash(begun)
        """Of all its tokens: a long one is named at every turn, and not gone through for that."""
        self.busy = False
        self.misses = 0
        """How often its prefix was asked for."""

    def extended_by(self, messages: Sequence[Message], policy_id: str) -> bool:
        """Whether the messages are the known ones first, then at least one new."""
        known = len(self.messages)
        return (
            not self.busy
            and policy_id == self.policy_id
            and len(messages) > known
            and list(messages[:known]) == self.messages
        )

    def take(
        self, new: Sequence[Message], answer: ModelAnswered, said: Message, sampling: Sampling
    ) -> None:
        self.messages += (*new, said)
        self.answers.append(answer)
        self.samplings.append(sampling)
        self.length += (len(answer.added_ids) + len(answer.token_ids)) // 4
        self.hash.update(answer.added_ids)
        self.hash.update(answer.token_ids)

    def held(self) -> bool:
        """Whether its server may be expected to hold it."""
        answered = len(self.answers)
        seldom = self.misses * MISS_EVERY <= answered + MISS_EVERY
        return self.length >= LONG_PREFIX and answered > 0 and seldom

    def packed(self) -> bytes:
        """All token ids; put together anew, for the answers hold them already."""
        said = [ids for a in self.answers for ids in (a.added_ids, a.token_ids)]
        return b"".join([self.begun, *said])


@dataclass(slots=True)
class Session:
    """One environment of an attempt, as far as the journal tells."""

    reset: EnvironmentStep
    actions: list[str]
    done: bool = False


class Rollout:
    """One open rollout: its program, what it waits for, and what it has learned."""

    __slots__ = (
        "admitted",
        "agent",
        "answers",
        "attempt",
        "broken",
        "conversations",
        "deadline_told",
        "decision",
        "due_ms",
        "failures",
        "first_offset",
        "heard_ms",
        "model_calls",
        "next_position",
        "outstanding",
        "partition",
        "request",
        "runs_ms",
        "sampled_tokens",
        "sessions",
        "started_ms",
        "steps",
        "wished",
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
        world: World,
        writer: str,
    ) -> None:
        self.request = request
        self.partition = partition
        self.first_offset = offset
        self.started_ms = started_ms
        self.world = world
        self.writer = writer
        self.deadline_told = False
        self.due_ms = 0
        """Nothing is overdue before; most rollouts need not be looked at when deadlines are due."""
        self.admitted = False
        """Whether its user's quota lets it run; the worker's affair, not history's."""
        self.runs_ms = started_ms
        """Since when its own deadline counts: not while a quota holds it."""
        self.heard_ms = 0
        """When the first answer came that counts; 0 before."""
        self._clear(1)

    def _clear(self, attempt: int) -> None:
        self.attempt = attempt
        self.agent: Agent | None = None
        self.outstanding: dict[int, Outstanding] = {}
        self.wished: list[int] | int = []
        self.answers: dict[int, object] = {}
        self.conversations: list[Conversation] = []
        self.sessions: dict[str, Session] = {}
        self.steps: list[StepTaken] = []
        self.next_position = 0
        self.model_calls = 0
        self.sampled_tokens = 0
        self.failures = 0
        self.broken = False
        self.decision: Event | None = None

    # Going on

    def begin(self, now_ms: int) -> list[Outcome]:
        """Start the program of the current attempt; `now_ms` is the event's append time."""
        try:
            program = self.world.program_of(self.request.agent)
        except Refused as error:
            return self._fail("unknown_program", str(error))
        task = self.request.task
        seed = call_seed(self.request.seed_key, self.attempt, NO_POSITION)
        given = Task(
            prompt=task.prompt,
            system=task.system,
            environment=task.environment,
            max_turns=self.request.limits.max_turns,
            agent_config=self.request.agent_config,
            drawn=cache(partial(self.world.random_of, seed)),
        )
        return self._advance(lambda: self._first(program, given), now_ms)

    def _first(self, program: Program, task: Task) -> object:
        self.agent = program(task)
        if not hasattr(self.agent, "send"):
            msg = f"program {self.request.agent!r} is no generator; it must yield its wishes"
            raise ProgramFailed("rubbish", msg)
        return next(self.agent)

    def _advance(self, turn: Callable[[], object], now_ms: int) -> list[Outcome]:
        """Run the program to its next wish, or to its end."""
        first, calls = self.next_position, self.model_calls
        try:
            return self._walled(lambda: self._wished(turn, now_ms))
        except ProgramFailed as error:
            self._withdraw(first, calls)
            return self._fail(error.code, str(error))

    def _walled(self, turn: Callable[[], T]) -> T:
        """Do what runs a program or looks at what it yielded; raises ProgramFailed alone.

        A user's program may raise anything, also what ends a process; it ends this rollout only.
        """
        try:
            with self.world.guard:
                return turn()
        except ProgramFailed:
            raise
        except BaseException as error:
            if is_from_outside(error):
                raise
            kind = type(error).__name__
            msg = f"program {self.request.agent!r} raised {kind}: {shown(error, str)}"
            raise ProgramFailed("raised", msg) from error

    def _wished(self, turn: Callable[[], object], now_ms: int) -> list[Outcome]:
        try:
            wished = turn()
        except StopIteration:
            wished = Finish()
        if isinstance(wished, Finish):
            return self._finish("finished", result=wished.result)
        return self._open(wished, now_ms)

    def _open(self, wished: object, now_ms: int) -> list[Outcome]:
        if isinstance(wished, WISHES):
            self.wished = self.next_position
            return [self._wish(wished, now_ms)]
        wishes = wished if isinstance(wished, list | tuple) else ()
        if not wishes or any(not isinstance(w, WISHES) for w in wishes):
            msg = (
                f"program {self.request.agent!r} yielded {shown(wished)} at position "
                f"{self.next_position}; it may yield CallModel, Step, Reset, Finish, or a list"
            )
            raise ProgramFailed("rubbish", msg)
        first = self.next_position
        opened: list[Outcome] = [self._wish(wish, now_ms) for wish in wishes]
        self.wished = list(range(first, self.next_position))
        return opened

    def _withdraw(self, first: int, model_calls: int) -> None:
        """Forget wishes that were spoilt by another one or by their guard: nobody heard them."""
        self.outstanding = {at: waits for at, waits in self.outstanding.items() if at < first}
        self.next_position, self.model_calls = first, model_calls

    def _wish(self, wish: Reset | CallModel | Step, now_ms: int) -> Outstanding:
        position = self.next_position
        limits = self.request.limits
        if position >= limits.max_turns * POSITIONS_PER_TURN + POSITIONS_PER_TURN:
            msg = f"the program made {position} wishes, more than its limits allow"
            raise ProgramFailed("position_limit", msg)
        if isinstance(wish, CallModel):
            waits = self._open_call(wish, now_ms)
        elif isinstance(wish, Reset):
            waits = self._open_reset(wish, now_ms)
        else:
            waits = self._open_step(wish, now_ms)
        self.next_position += 1
        self.outstanding[position] = waits
        self.due_ms = min(self.due_ms, self.deadline_ms(waits))
        return waits

    def _open_call(self, wish: CallModel, now_ms: int) -> Outstanding:
        limits = self.request.limits
        if self.model_calls >= limits.max_turns:
            msg = f"the program asked for more than {limits.max_turns} model calls"
            raise ProgramFailed("turn_limit", msg)
        if limits.max_tokens and self.sampled_tokens >= limits.max_tokens:
            msg = f"the attempt has sampled all its {limits.max_tokens} tokens"
            raise ProgramFailed("token_limit", msg)
        _check_call(wish)
        _check_messages(wish.messages[: wish.begun.messages if wish.begun else 0])
        policy_id = wish.policy_id or self.request.policy_id
        sequence = self._conversation(wish.messages, policy_id, wish.begun)
        new = tuple(wish.messages[len(sequence.messages) :])
        _check_messages(new)
        sampling = self._sampling(wish)
        digest = _call_digest(wish, sequence, new, policy_id, sampling)
        sequence.busy = True
        self.model_calls += 1
        return Outstanding(wish, self.next_position, digest, now_ms, sequence, new, sampling)

    def _conversation(
        self, messages: Sequence[Message], policy_id: str, given: Begun | None
    ) -> Conversation:
        """The longest one that the messages extend, the latest among equals; else a new one.

        Tokens that are given begin a new one, unless one that is known reaches as far.
        """
        known = [c for c in self.conversations if c.extended_by(messages, policy_id)]
        if given is not None:
            known = [c for c in known if len(c.messages) >= given.messages]
        if len(known) == 1:
            return known[0]
        if known:
            return max(known, key=lambda c: (len(c.messages), c.index))
        first, ids = (messages[: given.messages], given.ids) if given else ((), b"")
        begun = Conversation(len(self.conversations), policy_id, first, ids)
        self.conversations.append(begun)
        return begun

    def _sampling(self, wish: CallModel) -> Sampling:
        sampling = wish.sampling or self.request.sampling
        budget = self.request.limits.max_tokens
        left = budget - self.sampled_tokens
        return replace(sampling, max_tokens=left) if 0 < left < sampling.max_tokens else sampling

    def _open_reset(self, wish: Reset, now_ms: int) -> Outstanding:
        name, config, seed = self._environment(wish)
        if not _is_text(wish.session, name, config) or not _is_whole(seed, 64):
            msg = f"Reset needs texts and a 64-bit seed, found {shown(wish)}"
            raise ProgramFailed("rubbish", msg)
        digest = _digest("reset", wish.session, name, config, seed)
        return Outstanding(wish, self.next_position, digest, now_ms, None)

    def _environment(self, wish: Reset) -> tuple[str, str, int]:
        task = self.request.task
        name = task.environment if wish.environment is None else wish.environment
        config = (
            task.environment_config if wish.environment_config is None else wish.environment_config
        )
        return name, config, task.seed if wish.seed is None else wish.seed

    def _open_step(self, wish: Step, now_ms: int) -> Outstanding:
        if not _is_text(wish.session, wish.action):
            msg = f"Step needs texts that can be written as UTF-8, found {shown(wish)}"
            raise ProgramFailed("rubbish", msg)
        if wish.session not in self.sessions:
            msg = f"Step into session {wish.session!r} before its Reset was answered"
            raise ProgramFailed("rubbish", msg)
        done = len(self.sessions[wish.session].actions)
        digest = _digest("step", wish.session, done, wish.action)
        return Outstanding(wish, self.next_position, digest, now_ms, None)

    # Commands

    def effects(self, outcomes: list[Outcome], *, silent: bool) -> list[Effect]:
        """With the commands made of what was wished for; silently none is, as none will be sent."""
        return [
            self.command(outcome) if isinstance(outcome, Outstanding) else outcome
            for outcome in outcomes
            if not (silent and isinstance(outcome, Outstanding))
        ]

    def command(self, waits: Outstanding) -> Command:
        """The command of one outstanding wish, as it stands: same place, same bytes."""
        if isinstance(waits.wish, CallModel):
            return self._call(waits, waits.wish)
        return self._step(waits)

    def resend(self) -> list[Effect]:
        """What this rollout has asked for and has no answer to, and its undelivered decision."""
        sent: list[Effect] = [self.command(waits) for waits in self.outstanding.values()]
        return [*sent, self.decision] if self.decision else sent

    def at_first_command(self) -> bool:
        """Whether nothing has been answered yet."""
        return self.attempt == 1 and 0 in self.outstanding

    def restart_clock(self, now_ms: int) -> None:
        """Let all deadlines begin now: the first command was held back until now."""
        self.runs_ms = now_ms
        for waits in self.outstanding.values():
            waits.opened_ms = now_ms

    def _place(self, waits: Outstanding) -> tuple[str, int, int, int, bytes, bytes]:
        rollout_id, position = self.request.rollout_id, waits.position
        named = command_id(rollout_id, self.attempt, position, waits.tries)
        return rollout_id, self.attempt, position, waits.tries, named, waits.digest

    def _call(self, waits: Outstanding, wish: CallModel) -> ModelCall:
        sequence = cast(Conversation, waits.sequence)
        named = sequence.held() and not waits.with_history
        return make_call(
            *self._place(waits),
            self.partition,
            self.not_after_ms(waits),
            "sample",
            sequence.policy_id,
            sequence.index,
            waits.new,
            cast(Sampling, waits.sampling),
            call_seed(self.request.seed_key, self.attempt, waits.position),
            None if named else sequence.packed(),
            sequence.length,
            sequence.hash.digest() if named else b"",
            tools=wish.tools,
            min_policy_version=self.request.min_policy_version,
            policy_version=self._pinned(sequence.policy_id),
        )

    def _pinned(self, policy_id: str) -> int:
        """The version that a policy is asked of: the request's wish is of its own policy."""
        return self.request.policy_version if policy_id == self.request.policy_id else -1

    def _step(self, waits: Outstanding) -> EnvironmentStep:
        timeout_s, not_after_ms = self._timeout_s(waits), self.not_after_ms(waits)
        place = self._place(waits)
        if isinstance(waits.wish, Reset):
            name, config, seed = self._environment(waits.wish)
            return make_step(
                *place,
                self.partition,
                not_after_ms,
                "reset",
                name,
                waits.wish.session,
                config,
                seed,
                timeout_s=timeout_s,
            )
        wish = cast(Step, waits.wish)
        session = self.sessions[wish.session]
        opened = session.reset
        return make_step(
            *place,
            self.partition,
            not_after_ms,
            "step",
            opened.environment,
            wish.session,
            opened.environment_config,
            opened.seed,
            len(session.actions),
            wish.action,
            tuple(session.actions) if waits.with_history else None,
            timeout_s,
        )

    def _timeout_s(self, waits: Outstanding) -> float:
        limits = self.request.limits
        is_call = isinstance(waits.wish, CallModel)
        return limits.call_timeout_s if is_call else limits.step_timeout_s

    def not_after_ms(self, waits: Outstanding) -> int:
        """When it is too late to begin with this wish."""
        return waits.opened_ms + _whole_ms(self._timeout_s(waits))

    def deadline_ms(self, waits: Outstanding) -> int:
        """When it is too late for an answer to this wish."""
        return waits.opened_ms + _whole_ms(PATIENCE * self._timeout_s(waits))

    def ends_ms(self) -> int:
        """When it is too late for the rollout."""
        return self.runs_ms + _whole_ms(self.request.limits.rollout_timeout_s)

    # Answers

    def take(self, event: Event, now_ms: int) -> list[Outcome] | None:
        """Apply one answer or AttemptStarted; None when it does not count."""
        body = event.body
        if isinstance(body, AttemptStarted):
            return self._new_attempt(event.attempt, now_ms)
        if event.attempt != self.attempt or self.broken:
            return None
        waits = self.outstanding.get(event.position)
        if waits is None and event.position < self.next_position:
            return None
        if waits is not None and event.tries < waits.tries:
            return None
        if waits is None or not waits.fits(event):
            return self._broken(self._disagreement(event, waits))
        self.heard_ms = self.heard_ms or now_ms
        if isinstance(body, ModelAnswered):
            return self._settle(waits, self._heard(waits, body), now_ms)
        if isinstance(body, EnvironmentStepped):
            return self._settle(waits, self._saw(waits, body), now_ms)
        return self._failed(waits, cast(CallFailed, body), now_ms)

    def _disagreement(self, event: Event, waits: Outstanding | None) -> DeterminismError:
        """The journal answers what the program does not ask."""
        found = type(event.body).__name__
        if waits is None:
            wishes = f"has made {self.next_position} wishes"
        elif event.body_digest != waits.digest or event.tries > waits.tries:
            wishes = (
                f"wishes {type(waits.wish).__name__} {waits.digest.hex()[:8]}, try {waits.tries}"
            )
        else:
            wishes = f"wishes {type(waits.wish).__name__}"
        return DeterminismError(
            f"rollout {event.rollout_id} attempt {event.attempt} position {event.position}: the "
            f"journal answers {found} {event.body_digest.hex()[:8]}, try {event.tries}, but "
            f"program {self.request.agent!r} {wishes}; has the program changed? run it under a new "
            "name"
        )

    def _failed(self, waits: Outstanding, body: CallFailed, now_ms: int) -> list[Outcome]:
        limits = self.request.limits
        if body.code == "session_lost" and self.attempt < limits.max_attempts:
            del self.outstanding[waits.position]  # answered: nothing counts here any more
            return self._decide(
                AttemptStarted(body.message[:REASON_CHARS]), attempt=self.attempt + 1
            )
        free = body.code in FREE_FAILURES and not waits.with_history
        if waits.sequence is not None:
            waits.sequence.misses += body.code == "prefix_needed"
        self.failures += not free
        waits.failures += not free
        if body.retriable and waits.failures < limits.max_tries:
            waits.tries += 1
            waits.with_history = waits.with_history or free
            waits.opened_ms = now_ms
            waits.told = False
            self.due_ms = min(self.due_ms, self.deadline_ms(waits))
            return [waits]
        if waits.sequence is not None:
            waits.sequence.busy = False
        return self._settle(waits, WishFailed(body.code, body.message), now_ms)

    def _heard(self, waits: Outstanding, body: ModelAnswered) -> ModelAnswer:
        sequence = cast(Conversation, waits.sequence)
        said = make_message("assistant", body.text, body.tool_calls)
        sequence.take(waits.new, body, said, cast(Sampling, waits.sampling))
        sequence.busy = False
        self.sampled_tokens += len(body.token_ids) // 4
        return ModelAnswer(said, body.finish_reason)

    def _saw(self, waits: Outstanding, body: EnvironmentStepped) -> EnvironmentAnswer:
        wish = waits.wish
        action = None
        if isinstance(wish, Reset):
            self.sessions[wish.session] = Session(cast(EnvironmentStep, self.command(waits)), [])
        else:
            action = cast(Step, wish).action
            self.sessions[cast(Step, wish).session].actions.append(action)
        session = cast("Reset | Step", wish).session
        self.sessions[session].done = body.terminated or body.truncated
        self.steps.append(
            make_step_taken(
                waits.position,
                session,
                action,
                body.text,
                body.reward,
                body.terminated,
                body.truncated,
                body.info,
            )
        )
        return EnvironmentAnswer(body.text, body.reward, body.terminated, body.truncated, body.info)

    def _settle(self, waits: Outstanding, answer: object, now_ms: int) -> list[Outcome]:
        """Close one wish; when all that were made together are closed, the program goes on."""
        del self.outstanding[waits.position]
        agent = cast(Agent, self.agent)
        if isinstance(self.wished, int):
            if isinstance(answer, WishFailed):
                return self._advance(lambda: agent.throw(answer), now_ms)
            return self._advance(lambda: agent.send(answer), now_ms)
        self.answers[waits.position] = answer
        if any(position not in self.answers for position in self.wished):
            return []
        together = [self.answers.pop(position) for position in self.wished]
        return self._advance(lambda: agent.send(together), now_ms)

    # Decisions: written now, acted upon when they are read

    def _decide(self, body: wire.Body, attempt: int | None = None) -> list[Outcome]:
        self.decision = Event(
            self.request.rollout_id,
            attempt or self.attempt,
            NO_POSITION,
            0,
            b"",
            b"",
            self.writer,
            body,
        )
        return [self.decision]

    def _finish(
        self, status: str, *, code: str = "", reason: str = "", result: str = ""
    ) -> list[Outcome]:
        result = plain(result) if isinstance(result, str) else shown(result)
        if len(result) > RESULT_CHARS:
            msg = f"the result has {len(result):,} characters, more than {RESULT_CHARS:,}"
            return self._fail("result_too_large", msg)
        body = RolloutFinished(
            status, plain(code), plain(reason, REASON_CHARS), result, self.next_position
        )
        return self._decide(body)

    def _fail(self, code: str, reason: str) -> list[Outcome]:
        return self._finish("failed", code=code, reason=reason)

    def give_up(self, error: Exception) -> Event:
        """The decision to end a rollout that cannot be gone on with, whatever the reason is.

        Its state stays as it is: answers count on until the end is read, here and elsewhere.
        """
        self._fail("broken", f"it cannot be gone on with: {raised(error)}")
        return cast(Event, self.decision)

    def _broken(self, error: DeterminismError) -> list[Outcome]:
        self.broken = True
        if self.attempt < self.request.limits.max_attempts:
            reason = str(error)[:REASON_CHARS]
            return self._decide(AttemptStarted(reason), attempt=self.attempt + 1)
        return self._fail("determinism", str(error))

    def _new_attempt(self, attempt: int, now_ms: int) -> list[Outcome] | None:
        if attempt != self.attempt + 1:
            return None
        courtesy = self._courtesy()
        self.close_program()
        self._clear(attempt)
        return [*courtesy, *self.begin(now_ms)]

    def overdue(self, now_ms: int) -> list[Event]:
        """What has to be written because a deadline has passed; each only once."""
        if now_ms < self.due_ms:
            return []
        if now_ms >= self.ends_ms():
            if self.deadline_told:
                return []
            self.deadline_told = True
            return [self._event(DeadlinePassed(self.request.limits.rollout_timeout_s))]
        untold = [waits for waits in self.outstanding.values() if not waits.told]
        due = [(self.deadline_ms(waits), waits) for waits in untold]
        self.due_ms = min([self.ends_ms(), *(at for at, _ in due if now_ms < at)])
        return [self._late(waits) for at, waits in due if now_ms >= at]

    def _late(self, waits: Outstanding) -> Event:
        waits.told = True
        reason = f"no answer within {PATIENCE * self._timeout_s(waits):g} s"
        return Event(*self._place(waits), self.writer, CallFailed("deadline", reason, True))

    def cancelled(self, reason: str, by: str = "") -> Event:
        """The event that ends this rollout when it is read back."""
        return self._event(RolloutCancelled(reason[:REASON_CHARS], by))

    def _event(self, body: wire.Body) -> Event:
        place = (self.request.rollout_id, self.attempt, NO_POSITION, 0, b"", b"")
        return Event(*place, self.writer, body)

    # The end

    def end(self, body: Terminal, offset: int, now_ms: int) -> list[Effect]:
        """Everything that a counted terminal event gives rise to."""
        courtesy: list[Command] = []
        with suppress(Exception):  # it saves work, no more
            courtesy = self._courtesy()
        self.close_program()
        return [self.trajectory(body, offset, now_ms), *courtesy]

    def close_program(self) -> None:
        """Let the generator go; whatever it does on the way out is its own affair."""
        if self.agent is not None and hasattr(self.agent, "close"):
            with suppress(ProgramFailed):
                self._walled(self.agent.close)
        self.agent = None

    def _courtesy(self) -> list[Command]:
        """Close what is open elsewhere: saves work, never needed for history."""
        closing: list[Command] = [
            replace(session.reset, kind="close", attempt=self.attempt)
            for session in self.sessions.values()
            if not session.done
        ]
        for waits in self.outstanding.values():
            command = self.command(waits)
            if isinstance(command, ModelCall):
                aborted = replace(
                    command, kind="abort", messages=(), prefix_ids=None, prefix_length=0
                )
                closing.append(aborted)
            elif command.kind == "reset":
                closing.append(replace(command, kind="close"))
        return closing

    def trajectory(self, body: Terminal, offset: int, now_ms: int) -> Trajectory:
        """The rollout as it stands, under the status of the event that ended it.

        Calls without an answer are not counted: whether a program came to make them may have been
        its guard's decision, and that is known by its end only.
        """
        status, code, reason, result = _ending(body)
        waiting = sum(isinstance(w.wish, CallModel) for w in self.outstanding.values())
        told = [c for c in self.conversations if c.answers]
        policies = sorted({c.policy_id for c in told})
        sequences: tuple[wire.Sequence, ...] | None = None
        steps: tuple[StepTaken, ...] | None = None
        try:
            asked = self.request.sampling
            sequences = tuple(_sequence(c, policies.index(c.policy_id), asked) for c in told)
            steps = tuple(self.steps)
        except Exception as error:
            code, reason = "broken", f"its sequences cannot be put together: {raised(error)}"
        return Trajectory(
            rollout_id=self.request.rollout_id,
            attempt=self.attempt,
            status=status,
            request=self.request,
            policies=tuple(policies),
            sequences=sequences,
            steps=steps,
            model_calls=self.model_calls - waiting,
            sampled_tokens=self.sampled_tokens,
            failures=self.failures,
            journal_partition=self.partition,
            first_offset=self.first_offset,
            last_offset=offset,
            started_ms=self.started_ms,
            ended_ms=now_ms,
            code=code,
            reason=reason,
            result=result,
        )


def _ending(body: Terminal) -> tuple[str, str, str, str]:
    if isinstance(body, RolloutFinished):
        return body.status, body.code, body.reason, body.result
    if isinstance(body, RolloutCancelled):
        return "cancelled", "cancelled", body.reason, ""
    return "timed_out", "deadline", f"not finished within {body.timeout_s:g} s", ""


def _sequence(conversation: Conversation, policy_index: int, asked: Sampling) -> wire.Sequence:
    """Token by token what was read (mask 0) and what was sampled (mask 1), as packed bytes."""
    begun = len(conversation.begun) // 4
    ids, mask, logprobs = [conversation.begun], [b"\0" * begun], [bytes(4 * begun)]
    versions, policy = [b"\xff" * (4 * begun)], [b"\xff" * begun]
    for answer in conversation.answers:
        added, sampled = len(answer.added_ids) // 4, len(answer.token_ids) // 4
        ids += [answer.added_ids, answer.token_ids]
        mask += [b"\0" * added, b"\1" * sampled]
        logprobs += [bytes(4 * added), answer.logprobs]
        versions += [b"\xff" * (4 * added), answer.versions]
        policy += [b"\xff" * added, bytes([policy_index]) * sampled]
    last = conversation.answers[-1]
    samplings = conversation.samplings
    as_asked = all(_drawn(sampling) == _drawn(asked) for sampling in samplings)
    return wire.Sequence(
        token_ids=b"".join(ids),
        loss_mask=b"".join(mask),
        behaviour_logprobs=b"".join(logprobs),
        versions=b"".join(versions),
        policy_index=b"".join(policy),
        messages=tuple(conversation.messages),
        engine=last.engine,
        precision=last.precision,
        template_digest=last.template_digest,
        samplings=() if as_asked else tuple(samplings),
    )


def _drawn(sampling: Sampling) -> tuple[float, float, int]:
    """What decides the distribution that tokens are drawn from."""
    return sampling.temperature, sampling.top_p, sampling.top_k


def _is_text(*values: object) -> bool:
    """Whether these are strings that can be written; a lone surrogate cannot."""
    try:
        for value in values:
            if not isinstance(value, str):
                return False
            if not value.isascii():  # which costs nothing to ask
                value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _whole_ms(timeout_s: float) -> int:
    """A timeout as the clock of the log counts; what is no number of seconds never passes."""
    ms = timeout_s * 1000
    return int(ms) if -FAR_MS < ms < FAR_MS else FAR_MS


def _is_whole(value: object, bits: int) -> bool:
    return isinstance(value, int) and -(1 << bits - 1) <= value < 1 << bits - 1


def _check_call(wish: CallModel) -> None:
    """What cannot go on the wire must end its rollout here; later it would end the worker."""
    messages, how = wish.messages, wish.sampling
    if not isinstance(messages, (list, tuple)) or not messages:
        msg = f"CallModel needs a list of Message, found {shown(messages)}"
        raise ProgramFailed("rubbish", msg)
    if wish.begun is not None and not _is_begun(wish.begun, len(messages)):
        msg = f"CallModel needs as begun whole tokens of its first messages, found {shown(wish)}"
        raise ProgramFailed("rubbish", msg)
    if not _is_text(wish.tools, wish.policy_id or ""):
        msg = f"CallModel needs texts as policy_id and tools, found {shown(wish)}"
        raise ProgramFailed("rubbish", msg)
    if how is not None and not (
        isinstance(how, Sampling)
        and isinstance(how.temperature, int | float)
        and isinstance(how.top_p, int | float)
        and _is_whole(how.top_k, 32)
        and _is_whole(how.max_tokens, 32)
        and isinstance(how.stop, list | tuple)
        and _is_text(*how.stop)
    ):
        msg = f"CallModel needs a Sampling, found {shown(how)}"
        raise ProgramFailed("rubbish", msg)


def _is_begun(begun: object, messages: int) -> bool:
    """Whether these are tokens of fewer messages than there are."""
    return (
        isinstance(begun, Begun)
        and isinstance(begun.ids, bytes)
        and len(begun.ids) >= 4
        and len(begun.ids) % 4 == 0
        and _is_whole(begun.messages, 32)
        and 0 < begun.messages < messages
    )


def _check_messages(messages: Sequence[object]) -> None:
    for m in messages:
        if not isinstance(m, Message) or not _is_text(
            m.role, m.content, m.tool_calls, m.tool_call_id, m.name
        ):
            msg = f"CallModel needs a list of Message made of texts, found {shown(m)}"
            raise ProgramFailed("rubbish", msg)


def _digest(*parts: object) -> bytes:
    return blake2b("\0".join(map(str, parts)).encode(), digest_size=16).digest()


def _call_digest(
    wish: CallModel,
    sequence: Conversation,
    new: Iterable[Message],
    policy_id: str,
    sampling: Sampling,
) -> bytes:
    said = "\1".join(f"{m.role}\0{m.content}\0{m.tool_calls}\0{m.tool_call_id}" for m in new)
    how = (sampling.temperature, sampling.top_p, sampling.top_k, sampling.max_tokens, sampling.stop)
    place = (policy_id, sequence.index, sequence.length, how, wish.tools, said)
    begun = () if sequence.answers or not sequence.begun else (sequence.begun.hex(),)
    return _digest("call", *place, *begun)


class Journal:
    """The fold of one partition of rollout.events: its open rollouts and its chain of starts."""

    def __init__(
        self,
        partition: int,
        world: World,
        writer: str,
        begin: Watermark | None = None,
        *,
        few: int = FEW_RECORDS,
    ) -> None:
        self.few = few
        self.partition = partition
        self.world = world
        self.writer = writer
        begin = begin or Watermark(0)
        self.last = begin.last
        """The last counted request offset; None where none has been counted."""
        self.bulk_low = begin.bulk_low
        """Below this, only stragglers are read, and whether they count is known."""
        self.open: dict[str, Rollout] = {}
        self.just_ended: Rollout | None = None
        self.ignored: Counter[str] = Counter()
        self._stragglers = frozenset(begin.stragglers)
        self._keys: set[bytes | None] = set()
        self._starts: deque[tuple[int, int | None]] = deque()
        self._twice: deque[tuple[int, int]] = deque()
        self._ended: deque[tuple[int, Rollout]] = deque()

    def needs(self, offset: int, key: bytes | None) -> bool:
        """Whether a record has to be folded; asked in log order, it decides without decoding."""
        if offset >= self.bulk_low:
            return True
        if offset in self._stragglers:
            self._keys.add(key)
        return key in self._keys

    def take(self, event: Event, offset: int, now_ms: int, *, silent: bool = False) -> list[Effect]:
        """Apply one event, in log order. `now_ms` is its append time.

        Silently, answers give rise to no commands: for readers that would not send them.
        """
        body = event.body
        if isinstance(body, START):
            return self._start(event, body, offset, now_ms)
        rollout = self.open.get(event.rollout_id)
        if rollout is None:
            self.ignored["not_open"] += 1
            return []
        if isinstance(body, RolloutFinished) and event.attempt != rollout.attempt:
            self.ignored["older_attempt"] += 1
            return []
        if isinstance(body, END):
            del self.open[event.rollout_id]
            self._ended.append((offset, rollout))
            self.just_ended = rollout
            return rollout.end(body, offset, now_ms)
        try:
            outcomes = rollout.take(event, now_ms)
            if outcomes is None:
                self.ignored["late_or_twice"] += 1
                return []
            return rollout.effects(outcomes, silent=silent)
        except Exception as error:
            return [rollout.give_up(error)]

    def _start(
        self, event: Event, body: RolloutStarted | RolloutRefused, offset: int, now_ms: int
    ) -> list[Effect]:
        """Open a rollout, if its start counts."""
        if not self._counts(body, offset):
            return []
        if event.rollout_id in self.open:
            self.ignored["already_open"] += 1
            self._twice.append((self.open[event.rollout_id].first_offset, offset))
            return []
        if isinstance(body, RolloutRefused):
            return [_refused(event, body, self.partition, offset, now_ms)]
        rollout = Rollout(
            body.request,
            partition=self.partition,
            offset=offset,
            started_ms=now_ms,
            world=self.world,
            writer=self.writer,
        )
        self.open[event.rollout_id] = rollout
        try:
            return rollout.effects(rollout.begin(now_ms), silent=False)
        except Exception as error:
            return [rollout.give_up(error)]

    def _counts(self, body: RolloutStarted | RolloutRefused, offset: int) -> bool:
        """A start counts only if from <= last + 1 <= offset; where none was counted, the first."""
        if offset < self.bulk_low:
            return offset in self._stragglers
        if self.last is not None and not body.from_offset <= self.last + 1 <= body.request_offset:
            late = body.request_offset <= self.last
            self.ignored["started_before" if late else "start_after_gap"] += 1
            return False
        before, self.last = self.last, body.request_offset
        self._starts.append((offset, before))
        return True

    def _firsts(self, commit: int, most: int) -> list[int]:
        """First offsets below `commit` of the oldest rollouts that count as open there."""
        known = {
            *(rollout.first_offset for _, rollout in self._ended),
            *(first for first, _ in self._twice),
            *(rollout.first_offset for rollout in islice(self.open.values(), most)),
        }
        return nsmallest(most, (first for first in known if first < commit))

    def watermark(self, commit: int) -> Watermark:
        """Where a reader must begin to know all that is open at `commit`; commits go up only.

        A rollout whose end lies at or above the commit counts as open: its end will be read again.
        So does one that was started twice while it was open, as long as the second start is read:
        without the first it would count. Stragglers are named where that at least halves what has
        to be read; `bulk_low` never goes back, for what lies below it may be unknown here.
        """
        while self._ended and self._ended[0][0] < commit:
            self._ended.popleft()
        firsts = self._firsts(commit, 1)
        lows = [*firsts, commit]
        if lows[0] < max(commit - self.few, self.bulk_low):
            firsts = self._firsts(commit, MOST_STRAGGLERS + 1)
            lows = [*firsts, commit][: MOST_STRAGGLERS + 1]
        near = commit - max(self.few, 2 * (commit - lows[-1]))
        named = next(n for n, low in enumerate(lows) if low >= max(near, self.bulk_low))
        self.bulk_low = low = lows[named]
        while self._twice and self._twice[0][1] < low:
            self._twice.popleft()
        while self._starts and self._starts[0][0] < low:
            self._starts.popleft()
        last = self._starts[0][1] if self._starts else self.last
        return Watermark(low, last, tuple(firsts[:named]))


def _refused(
    event: Event, body: RolloutRefused, partition: int, offset: int, now_ms: int
) -> Trajectory:
    return Trajectory(
        rollout_id=event.rollout_id,
        attempt=event.attempt,
        status="refused",
        request=body.request,
        policies=(),
        sequences=(),
        steps=(),
        model_calls=0,
        sampled_tokens=0,
        failures=0,
        journal_partition=partition,
        first_offset=offset,
        last_offset=offset,
        started_ms=now_ms,
        ended_ms=now_ms,
        code=body.code,
        reason=body.reason,
    )
