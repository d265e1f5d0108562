"""How a wish is noted that a program has just made: what it asks, and until when."""

from dataclasses import replace
from typing import TYPE_CHECKING

from consumers.agents.fold.bodies import call_digest, digest_of, environment_of, spelt, step_digest
from consumers.agents.fold.checks import check_call, check_messages, check_reset, check_step
from consumers.agents.fold.conversation import conversation_for, counted_after
from consumers.agents.fold.outstanding import Outstanding
from consumers.agents.wishes import CallModel, Reset, Step
from schemas.errors import ProgramFailed
from schemas.messages import Sampling

if TYPE_CHECKING:
    from consumers.agents.fold.attempt import Attempt


def open_wish(attempt: "Attempt", wish: Reset | CallModel | Step, now_ms: int) -> Outstanding:
    """Note one wish of its program; raises ProgramFailed for one that it may not make."""
    position = attempt.next_position
    if position >= attempt.most_wishes:
        msg = f"the program made {position} wishes, more than its limits allow"
        raise ProgramFailed("position_limit", msg)
    if isinstance(wish, CallModel):
        waits = _open_call(attempt, wish, now_ms)
    elif isinstance(wish, Reset):
        waits = _open_reset(attempt, wish, now_ms)
    else:
        waits = _open_step(attempt, wish, now_ms)
    attempt.next_position += 1
    attempt.outstanding[position] = waits
    if attempt.due_ms:
        attempt.due_ms = min(attempt.due_ms, waits.deadline_ms())
    return waits


def _open_call(attempt: "Attempt", wish: CallModel, now_ms: int) -> Outstanding:
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
    sampling = _sampling(attempt, wish)
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


def _sampling(attempt: "Attempt", wish: CallModel) -> Sampling:
    sampling = wish.sampling or attempt.request.sampling
    budget = attempt.request.limits.max_tokens
    left = budget - attempt.sampled_tokens
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
