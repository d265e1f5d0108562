"""Opens a wish that a program has just made: its digest, command fields and timeout."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from rollcall.consumers.agents.fold.bodies import (
    call_digest,
    digest_of,
    environment_of,
    spelt,
    step_digest,
)
from rollcall.consumers.agents.fold.checks import (
    check_call,
    check_messages,
    check_reset,
    check_step,
)
from rollcall.consumers.agents.fold.conversation import conversation_for, counted_after
from rollcall.consumers.agents.fold.outstanding import Outstanding
from rollcall.consumers.agents.wishes import CallModel, Reset, Step
from rollcall.schemas.errors import ProgramFailed
from rollcall.schemas.messages import Sampling

if TYPE_CHECKING:
    from rollcall.consumers.agents.fold.attempt import Attempt


ONE_AT_A_TIME = SHARED_BUDGET = 1
"""The version of the rules since which a session has one wish open, and open
calls share the token budget."""


class Reserved(ProgramFailed):
    """Raised if no token is left for a call while others are open; some
    may be left when these end."""


def open_together(
    attempt: "Attempt",
    wishes: Sequence[Reset | CallModel | Step],
    now_ms: int,
    refuse: Callable[[CallModel, Reserved], None] | None = None,
) -> list[Outstanding]:
    """Open wishes that are made concurrently; raises ProgramFailed.

    `refuse` is called with a call for which no token is left, if its program can be told so.
    """
    calls = sum(isinstance(wish, CallModel) for wish in wishes)
    opened = []
    for wish in wishes:
        calls -= isinstance(wish, CallModel)
        try:
            opened.append(open_wish(attempt, wish, now_ms, calls))
        except Reserved as error:
            if refuse is None or not isinstance(wish, CallModel):
                raise
            refuse(wish, error)
    return opened


def open_wish(
    attempt: "Attempt", wish: Reset | CallModel | Step, now_ms: int, calls_behind: int = 0
) -> Outstanding:
    """Open one wish of the program; raises ProgramFailed if it is not allowed.

    `calls_behind` is the number of calls that follow it in the same list; they share the budget.
    """
    position = attempt.next_position
    if position >= attempt.most_wishes:
        msg = f"the program made {position} wishes, more than its limits allow"
        raise ProgramFailed("position_limit", msg)
    if isinstance(wish, CallModel):
        waits = _open_call(attempt, wish, now_ms, calls_behind)
    elif isinstance(wish, Reset):
        waits = _open_reset(attempt, wish, now_ms)
        _check_alone(attempt, wish)
    else:
        waits = _open_step(attempt, wish, now_ms)
        _check_alone(attempt, wish)
    attempt.next_position += 1
    attempt.outstanding[position] = waits
    if attempt.due_ms:
        attempt.due_ms = min(attempt.due_ms, waits.deadline_ms())
    return waits


def _check_alone(attempt: "Attempt", wish: Reset | Step) -> None:
    """Raise ProgramFailed if the session has a wish open: answers to two at once
    could not be told apart."""
    if attempt.rules < ONE_AT_A_TIME:
        return
    for waits in attempt.outstanding.values():
        if isinstance(waits.wish, Reset | Step) and waits.wish.session == wish.session:
            msg = (
                f"the program has two wishes of session {wish.session!r} open, at positions "
                f"{waits.position} and {attempt.next_position}; yield them one after the other"
            )
            raise ProgramFailed("rubbish", msg)


def _open_call(attempt: "Attempt", wish: CallModel, now_ms: int, calls_behind: int) -> Outstanding:
    limits = attempt.request.limits
    if attempt.model_calls >= limits.max_turns:
        msg = f"the program asked for more than {limits.max_turns} model calls"
        raise ProgramFailed("turn_limit", msg)
    if limits.max_tokens and attempt.sampled_tokens >= limits.max_tokens:
        msg = f"the attempt has sampled all its {limits.max_tokens} tokens"
        raise ProgramFailed("token_limit", msg)
    check_call(wish)
    if wish.begun is not None:
        check_messages(wish.messages[: wish.begun.messages])
    policy_id = wish.policy_id or attempt.request.policy_id
    sampling = _sampling(attempt, wish, calls_behind)
    find = conversation_for if sampling.max_tokens else counted_after
    sequence = find(wish, policy_id, attempt.conversations)
    new = tuple(wish.messages[len(sequence.messages) :])
    check_messages(new)
    as_asked = sampling is attempt.request.sampling
    how = attempt.how_asked if as_asked else spelt(sampling)
    digest = call_digest(wish, sequence, new, policy_id, how)
    sequence.busy = True
    attempt.model_calls += 1
    timeout_s = limits.call_timeout_s
    return Outstanding(
        wish, attempt.next_position, digest, now_ms, timeout_s, sequence, new, sampling
    )


def _sampling(attempt: "Attempt", wish: CallModel, calls_behind: int) -> Sampling:
    """Return the sampling of a call, with no more tokens than its share of the
    attempt's remaining budget."""
    sampling = wish.sampling or attempt.request.sampling
    budget = attempt.request.limits.max_tokens
    left = budget - attempt.sampled_tokens
    if budget and sampling.max_tokens and attempt.rules >= SHARED_BUDGET:
        open_ = (waits.sampling for waits in attempt.outstanding.values())
        left = (left - sum(each.max_tokens for each in open_ if each)) // (1 + calls_behind)
        if left <= 0:
            msg = f"the attempt has sampled or given to open calls all its {budget} tokens"
            raise Reserved("token_limit", msg)
    return replace(sampling, max_tokens=left) if 0 < left < sampling.max_tokens else sampling


def _open_reset(attempt: "Attempt", wish: Reset, now_ms: int) -> Outstanding:
    name, config, seed = environment_of(wish, attempt.request.task)
    check_reset(wish, name, config, seed)
    digest = digest_of("reset", wish.session, name, config, seed)
    limits = attempt.request.limits
    timeout_s = limits.open_timeout_s or limits.step_timeout_s
    return Outstanding(wish, attempt.next_position, digest, now_ms, timeout_s)


def _open_step(attempt: "Attempt", wish: Step, now_ms: int) -> Outstanding:
    check_step(wish)
    session = attempt.sessions.get(wish.session)
    if session is None:
        msg = f"Step into session {wish.session!r} before its Reset was answered"
        raise ProgramFailed("rubbish", msg)
    digest = step_digest(wish, session.applied)
    timeout_s = attempt.request.limits.step_timeout_s
    return Outstanding(wish, attempt.next_position, digest, now_ms, timeout_s)
