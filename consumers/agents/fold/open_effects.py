"""Opens an effect that a program has just made: its digest, command fields and timeout."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from rollcall.consumers.agents.effects import CallModel, Reset, Step
from rollcall.consumers.agents.fold.checks import (
    check_call,
    check_messages,
    check_reset,
    check_step,
)
from rollcall.consumers.agents.fold.conversation import conversation_for, counted_after
from rollcall.consumers.agents.fold.effect_digests import (
    call_digest,
    digest_of,
    environment_of,
    serialised_sampling,
    step_digest,
)
from rollcall.consumers.agents.fold.outstanding import OutstandingEffect
from rollcall.schemas.errors import ProgramFailed
from rollcall.schemas.messages import Sampling

if TYPE_CHECKING:
    from rollcall.consumers.agents.fold.attempt import Attempt


ONE_AT_A_TIME = SHARED_BUDGET = 1
"""The version of the rules since which a session has one effect open, and open
calls share the token budget."""


class TokensReserved(ProgramFailed):
    """Raised if no token is left for a call while others are open; some
    may be left when these end."""


def open_concurrently(
    attempt: "Attempt",
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
            opened.append(open_effect(attempt, effect, now_ms, calls))
        except TokensReserved as error:
            if refuse is None or not isinstance(effect, CallModel):
                raise
            refuse(effect, error)
    return opened


def open_effect(
    attempt: "Attempt", effect: Reset | CallModel | Step, now_ms: int, calls_behind: int = 0
) -> OutstandingEffect:
    """Open one effect of the program; raises ProgramFailed if it is not allowed.

    `calls_behind` is the number of calls that follow it in the same list; they share the budget.
    """
    position = attempt.next_position
    if position >= attempt.max_effects:
        msg = f"the program made {position} wishes, more than its limits allow"
        raise ProgramFailed("position_limit", msg)
    if isinstance(effect, CallModel):
        waits = _open_call(attempt, effect, now_ms, calls_behind)
    elif isinstance(effect, Reset):
        waits = _open_reset(attempt, effect, now_ms)
        _check_alone(attempt, effect)
    else:
        waits = _open_step(attempt, effect, now_ms)
        _check_alone(attempt, effect)
    attempt.next_position += 1
    attempt.outstanding[position] = waits
    if attempt.due_ms:
        attempt.due_ms = min(attempt.due_ms, waits.deadline_ms())
    return waits


def _check_alone(attempt: "Attempt", effect: Reset | Step) -> None:
    """Raise ProgramFailed if the session has an effect open: answers to two at once
    could not be distinguished."""
    if attempt.rules < ONE_AT_A_TIME:
        return
    for waits in attempt.outstanding.values():
        if isinstance(waits.effect, Reset | Step) and waits.effect.session == effect.session:
            msg = (
                f"the program has two wishes of session {effect.session!r} open, at positions "
                f"{waits.position} and {attempt.next_position}; yield them one after the other"
            )
            raise ProgramFailed("rubbish", msg)


def _open_call(
    attempt: "Attempt", effect: CallModel, now_ms: int, calls_behind: int
) -> OutstandingEffect:
    limits = attempt.request.limits
    if attempt.model_calls >= limits.max_turns:
        msg = f"the program asked for more than {limits.max_turns} model calls"
        raise ProgramFailed("turn_limit", msg)
    if limits.max_tokens and attempt.sampled_tokens >= limits.max_tokens:
        msg = f"the attempt has sampled all its {limits.max_tokens} tokens"
        raise ProgramFailed("token_limit", msg)
    check_call(effect)
    if effect.begun is not None:
        check_messages(effect.messages[: effect.begun.messages])
    policy_id = effect.policy_id or attempt.request.policy_id
    sampling = _sampling(attempt, effect, calls_behind)
    find = conversation_for if sampling.max_tokens else counted_after
    sequence = find(effect, policy_id, attempt.conversations)
    new = tuple(effect.messages[len(sequence.messages) :])
    check_messages(new)
    as_asked = sampling is attempt.request.sampling
    how = attempt.how_asked if as_asked else serialised_sampling(sampling)
    digest = call_digest(effect, sequence, new, policy_id, how)
    sequence.busy = True
    attempt.model_calls += 1
    timeout_s = limits.call_timeout_s
    return OutstandingEffect(
        effect, attempt.next_position, digest, now_ms, timeout_s, sequence, new, sampling
    )


def _sampling(attempt: "Attempt", effect: CallModel, calls_behind: int) -> Sampling:
    """Return the sampling of a call, with no more tokens than its share of the
    attempt's remaining budget."""
    sampling = effect.sampling or attempt.request.sampling
    budget = attempt.request.limits.max_tokens
    left = budget - attempt.sampled_tokens
    if budget and sampling.max_tokens and attempt.rules >= SHARED_BUDGET:
        open_ = (waits.sampling for waits in attempt.outstanding.values())
        left = (left - sum(each.max_tokens for each in open_ if each)) // (1 + calls_behind)
        if left <= 0:
            msg = f"the attempt has sampled or given to open calls all its {budget} tokens"
            raise TokensReserved("token_limit", msg)
    return replace(sampling, max_tokens=left) if 0 < left < sampling.max_tokens else sampling


def _open_reset(attempt: "Attempt", effect: Reset, now_ms: int) -> OutstandingEffect:
    name, config, seed = environment_of(effect, attempt.request.task)
    check_reset(effect, name, config, seed)
    digest = digest_of("reset", effect.session, name, config, seed)
    limits = attempt.request.limits
    timeout_s = limits.open_timeout_s or limits.step_timeout_s
    return OutstandingEffect(effect, attempt.next_position, digest, now_ms, timeout_s)


def _open_step(attempt: "Attempt", effect: Step, now_ms: int) -> OutstandingEffect:
    check_step(effect)
    session = attempt.sessions.get(effect.session)
    if session is None:
        msg = f"Step into session {effect.session!r} before its Reset was answered"
        raise ProgramFailed("rubbish", msg)
    digest = step_digest(effect, session.applied)
    timeout_s = attempt.request.limits.step_timeout_s
    return OutstandingEffect(effect, attempt.next_position, digest, now_ms, timeout_s)
