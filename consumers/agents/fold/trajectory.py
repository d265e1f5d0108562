"""The trajectory that is written when a rollout has ended or was refused."""

from rollcall.consumers.agents.effects import CallModel
from rollcall.consumers.agents.fold.attempt import Attempt
from rollcall.consumers.agents.fold.conversation import Conversation
from rollcall.schemas.errors import FailureCode
from rollcall.schemas.messages import (
    DeadlinePassed,
    Event,
    RolloutCancelled,
    RolloutFinished,
    RolloutRefused,
    RolloutTimers,
    Sampling,
    Sequence,
    Trajectory,
)
from rollcall.schemas.untrusted_text import describe_exception

Terminal = RolloutFinished | RolloutCancelled | DeadlinePassed
# As a tuple: `isinstance` with A | B makes the union anew each time.
END = (RolloutFinished, RolloutCancelled, DeadlinePassed)


def ended_trajectory(
    attempt: Attempt,
    body: Terminal,
    *,
    first_offset: int,
    last_offset: int,
    started_ms: int,
    ended_ms: int,
    timers: RolloutTimers | None = None,
) -> Trajectory:
    """Return the trajectory of the attempt as it stands, with the status of the event that ended
    it.

    Calls without an answer are not counted: whether a program made them may depend on the guard.
    """
    status, code, reason, result = _ending(body)
    waiting = sum(isinstance(w.effect, CallModel) for w in attempt.outstanding.values())
    policies, sequences, broken = _sequences(attempt)
    if broken:
        code, reason = FailureCode.BROKEN, broken
    return Trajectory(
        rollout_id=attempt.request.rollout_id,
        attempt=attempt.number,
        status=status,
        request=attempt.request,
        policies=policies,
        sequences=sequences,
        steps=None if broken else tuple(attempt.steps_taken()),
        model_calls=attempt.model_calls - waiting,
        sampled_tokens=attempt.sampled_tokens,
        failures=attempt.failures,
        journal_partition=attempt.partition,
        first_offset=first_offset,
        last_offset=last_offset,
        started_ms=started_ms,
        ended_ms=ended_ms,
        code=code,
        reason=reason,
        result=result,
        timers=timers,
    )


def refused_trajectory(
    event: Event, body: RolloutRefused, partition: int, offset: int, now_ms: int
) -> Trajectory:
    """Return the trajectory of a request that was refused: empty, and its end is its beginning."""
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


def _ending(body: Terminal) -> tuple[str, str, str, str]:
    if isinstance(body, RolloutFinished):
        return body.status, body.code, body.reason, body.result
    if isinstance(body, RolloutCancelled):
        return "cancelled", FailureCode.CANCELLED, body.reason, ""
    return "timed_out", FailureCode.DEADLINE, f"not finished within {body.timeout_s:g} s", ""


def _sequences(
    attempt: Attempt,
) -> tuple[tuple[str, ...], tuple[Sequence, ...] | None, str]:
    """Return the policies that sampled, and one sequence for each conversation in which they
    did, or the reason why these cannot be assembled."""
    answered = [c for c in attempt.conversations if c.sampled()]
    policies, asked = tuple(sorted({c.policy_id for c in answered})), attempt.request.sampling
    try:
        sequences = tuple(_sequence(c, policies.index(c.policy_id), asked) for c in answered)
    except Exception as error:
        return policies, None, f"its sequences cannot be put together: {describe_exception(error)}"
    return policies, sequences, ""


def _sequence(conversation: Conversation, policy_index: int, asked: Sampling) -> Sequence:
    """Return the columns token by token, packed: prompt tokens with mask 0, sampled ones with mask
    1.

    If any answer is untrainable the whole sequence is masked out.
    """
    last = conversation.last
    if conversation.untrainable:
        columns = _unsampled(conversation.packed())
    else:
        columns = _columns(conversation, policy_index)
    ids, mask, logprobs, versions, policy = columns
    samplings = conversation.samplings
    as_asked = all(_sampling_of(sampling) == _sampling_of(asked) for sampling in samplings)
    return Sequence(
        token_ids=ids,
        loss_mask=mask,
        behaviour_logprobs=logprobs,
        versions=versions,
        policy_index=policy,
        messages=tuple(conversation.messages),
        engine=last.engine if last else "",
        precision=last.precision if last else "",
        template_digest=last.template_digest if last else "",
        samplings=() if as_asked else tuple(samplings),
    )


def _columns(conversation: Conversation, policy_index: int) -> tuple[bytes, ...]:
    """Return ids, mask, log-probabilities, versions and policies of the whole conversation."""
    begun = _begun_columns(conversation, policy_index)
    mask, logprobs, versions, policy = ([column] for column in begun)
    for answer in conversation.answers:
        added, sampled = answer.read, len(answer.logprobs) // 4
        mask += [bytes(added), b"\1" * sampled]
        logprobs += [bytes(4 * added), answer.logprobs]
        versions += [b"\xff" * (4 * added), answer.versions()]
        policy += [b"\xff" * added, bytes([policy_index]) * sampled]
    columns = (b"".join(column) for column in (mask, logprobs, versions, policy))
    return conversation.packed(), *columns


def _unsampled(ids: bytes) -> tuple[bytes, ...]:
    """Return the same columns for tokens that no policy sampled."""
    return ids, *_unsampled_columns(len(ids) // 4)


def _unsampled_columns(count: int) -> tuple[bytes, bytes, bytes, bytes]:
    """Return the columns without the ids."""
    return bytes(count), bytes(4 * count), b"\xff" * (4 * count), b"\xff" * count


def _begun_columns(conversation: Conversation, policy_index: int) -> tuple[bytes, ...]:
    """Return mask, log-probabilities, versions and policies of the tokens that it began with."""
    recorded = conversation.recorded
    if recorded is None:
        return _unsampled_columns(conversation.begun)
    policy = bytes(policy_index if sampled else 255 for sampled in recorded.mask)
    return recorded.mask, recorded.logprobs, recorded.versions, policy


def _sampling_of(sampling: Sampling) -> tuple[float, float, int]:
    """Return the parameters that decide the distribution from which tokens are sampled."""
    return sampling.temperature, sampling.top_p, sampling.top_k
