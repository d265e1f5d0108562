"""The effects of one attempt: opened within its limits, and changed by their answers.

Everything here follows from the effects that the program made and from the answers that counted;
the program itself runs in `attempt`. A position numbers each effect in the order in which the
program made them, so an answer names its effect by attempt and position alone.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from rollcall.consumers.agents.effects import (
    CallModel,
    EnvironmentAnswer,
    ModelAnswer,
    Reset,
    Step,
    make_message,
)
from rollcall.consumers.agents.fold.checks import (
    check_call,
    check_messages,
    check_reset,
    check_step,
)
from rollcall.consumers.agents.fold.conversation import (
    Conversation,
    conversation_for,
    counted_after,
)
from rollcall.consumers.agents.fold.effect_digests import (
    call_digest,
    digest_of,
    environment_of,
    serialised_sampling,
    step_digest,
)
from rollcall.consumers.agents.fold.outstanding import OutstandingEffect
from rollcall.schemas.errors import FailureCode, ProgramFailed
from rollcall.schemas.message_code import maker
from rollcall.schemas.messages import (
    EnvironmentStepped,
    ModelAnswered,
    RolloutRequest,
    Sampling,
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
ONE_AT_A_TIME = SHARED_BUDGET = 1
"""The version of the rules since which a session has one effect open, and open
calls share the token budget."""

StepRow = tuple[int, str, str | None, str, float, bool, bool, str]
"""A StepTaken, field by field."""


class TokensReserved(ProgramFailed):
    """Raised if no token is left for a call while others are open; some
    may be left when these end."""


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


class AttemptEffects:
    """The effects of one attempt: the outstanding ones, and the state that the answers made."""

    __slots__ = (
        "conversations",
        "due_ms",
        "failures",
        "how_asked",
        "max_effects",
        "model_calls",
        "next_position",
        "number",
        "outstanding",
        "partition",
        "request",
        "rules",
        "sampled_tokens",
        "sessions",
        "steps",
    )

    def __init__(
        self, number: int, request: RolloutRequest, partition: int, rules: int = 0
    ) -> None:
        self.number = number
        self.rules = rules
        self.request = request
        self.partition = partition
        self.outstanding: dict[int, OutstandingEffect] = {}
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

    # Opening

    def open_concurrently(
        self,
        effects: Sequence[Reset | CallModel | Step],
        now_ms: int,
        refuse: Callable[[CallModel, TokensReserved], None] | None = None,
    ) -> list[OutstandingEffect]:
        """Open effects that are made concurrently; raises ProgramFailed.

        `refuse` is called with a call for which no token is left, if its program can be told so.
        """
        calls = sum(isinstance(effect, CallModel) for effect in effects)
        opened = []
        for effect in effects:
            calls -= isinstance(effect, CallModel)
            try:
                opened.append(self.open_effect(effect, now_ms, calls))
            except TokensReserved as error:
                if refuse is None or not isinstance(effect, CallModel):
                    raise
                refuse(effect, error)
        return opened

    def open_effect(
        self, effect: Reset | CallModel | Step, now_ms: int, calls_behind: int = 0
    ) -> OutstandingEffect:
        """Open one effect of the program; raises ProgramFailed if it is not allowed.

        `calls_behind` is the number of calls that follow it in the same list; they share the
        budget.
        """
        position = self.next_position
        if position >= self.max_effects:
            msg = (
                f"the program made {position} effects, all that its limits allow; let it end "
                "earlier, or raise max_wishes in the limits of the request"
            )
            raise ProgramFailed(FailureCode.POSITION_LIMIT, msg)
        if isinstance(effect, CallModel):
            waits = self._open_call(effect, now_ms, calls_behind)
        elif isinstance(effect, Reset):
            waits = self._open_reset(effect, now_ms)
            self._check_alone(effect)
        else:
            waits = self._open_step(effect, now_ms)
            self._check_alone(effect)
        self.next_position += 1
        self.outstanding[position] = waits
        if self.due_ms:
            self.due_ms = min(self.due_ms, waits.deadline_ms())
        return waits

    def withdraw(self, first: int, model_calls: int) -> None:
        """Discard the effects of a turn that failed; their commands were never sent."""
        self.outstanding = {at: waits for at, waits in self.outstanding.items() if at < first}
        self.next_position, self.model_calls = first, model_calls

    def _check_alone(self, effect: Reset | Step) -> None:
        """Raise ProgramFailed if the session has an effect open: answers to two at once
        could not be distinguished."""
        if self.rules < ONE_AT_A_TIME:
            return
        for waits in self.outstanding.values():
            if isinstance(waits.effect, Reset | Step) and waits.effect.session == effect.session:
                msg = (
                    f"the program has two effects of session {effect.session!r} open, at positions "
                    f"{waits.position} and {self.next_position}; yield them one after the other"
                )
                raise ProgramFailed(FailureCode.RUBBISH, msg)

    def _open_call(self, effect: CallModel, now_ms: int, calls_behind: int) -> OutstandingEffect:
        limits = self.request.limits
        if self.model_calls >= limits.max_turns:
            msg = (
                f"the program asked for more than {limits.max_turns} model calls; let it end "
                "earlier, or raise max_turns in the limits of the request"
            )
            raise ProgramFailed(FailureCode.TURN_LIMIT, msg)
        if limits.max_tokens and self.sampled_tokens >= limits.max_tokens:
            msg = f"the attempt has sampled all its {limits.max_tokens} tokens"
            raise ProgramFailed(FailureCode.TOKEN_LIMIT, msg)
        check_call(effect)
        if effect.begun is not None:
            check_messages(effect.messages[: effect.begun.messages])
        policy_id = effect.policy_id or self.request.policy_id
        sampling = self._sampling(effect, calls_behind)
        # A call that samples nothing only counts tokens: it must not extend the conversation.
        find = conversation_for if sampling.max_tokens else counted_after
        sequence = find(effect, policy_id, self.conversations)
        new = tuple(effect.messages[len(sequence.messages) :])
        check_messages(new)
        as_asked = sampling is self.request.sampling
        how = self.how_asked if as_asked else serialised_sampling(sampling)
        digest = call_digest(effect, sequence, new, policy_id, how)
        sequence.busy = True
        self.model_calls += 1
        timeout_s = limits.call_timeout_s
        return OutstandingEffect(
            effect, self.next_position, digest, now_ms, timeout_s, sequence, new, sampling
        )

    def _sampling(self, effect: CallModel, calls_behind: int) -> Sampling:
        """Return the sampling of a call, with no more tokens than its share of the
        attempt's remaining budget."""
        sampling = effect.sampling or self.request.sampling
        budget = self.request.limits.max_tokens
        left = budget - self.sampled_tokens
        if budget and sampling.max_tokens and self.rules >= SHARED_BUDGET:
            open_ = (waits.sampling for waits in self.outstanding.values())
            left = (left - sum(each.max_tokens for each in open_ if each)) // (1 + calls_behind)
            if left <= 0:
                msg = f"the attempt has sampled or given to open calls all its {budget} tokens"
                raise TokensReserved(FailureCode.TOKEN_LIMIT, msg)
        return replace(sampling, max_tokens=left) if 0 < left < sampling.max_tokens else sampling

    def _open_reset(self, effect: Reset, now_ms: int) -> OutstandingEffect:
        name, config, seed = environment_of(effect, self.request.task)
        check_reset(effect, name, config, seed)
        digest = digest_of("reset", effect.session, name, config, seed)
        limits = self.request.limits
        timeout_s = limits.open_timeout_s or limits.step_timeout_s
        return OutstandingEffect(effect, self.next_position, digest, now_ms, timeout_s)

    def _open_step(self, effect: Step, now_ms: int) -> OutstandingEffect:
        check_step(effect)
        session = self.sessions.get(effect.session)
        if session is None:
            msg = (
                f"Step into session {effect.session!r} before its Reset was answered; yield "
                "Reset first, and the Step after its answer"
            )
            raise ProgramFailed(FailureCode.RUBBISH, msg)
        # The number of earlier actions is part of it: the same action twice is two effects.
        digest = step_digest(effect, session.applied)
        timeout_s = self.request.limits.step_timeout_s
        return OutstandingEffect(effect, self.next_position, digest, now_ms, timeout_s)

    # Answers

    def record_answer(
        self, waits: OutstandingEffect, body: ModelAnswered, command_id: bytes, now_ms: int
    ) -> ModelAnswer:
        """Extend a conversation by a model's answer; return the answer as the program sees it."""
        effect, sequence, sampling = waits.effect, waits.sequence, waits.sampling
        assert isinstance(effect, CallModel)
        assert sequence is not None
        assert sampling is not None
        reply = make_message("assistant", body.text, body.tool_calls)
        sequence.add_answer(waits.new, body, reply, sampling)
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

    def record_observation(
        self, waits: OutstandingEffect, body: EnvironmentStepped
    ) -> EnvironmentAnswer:
        """Record a step of a session; return the answer as the program sees it."""
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
