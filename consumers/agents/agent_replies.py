"""Replies to an agent's model requests, and the test whether a failure is the system's fault.

Pure: the program `hosted` makes the same replies each time it is folded.
"""

from collections.abc import Mapping, Sequence

from rollcall.consumers.agents.effects import ModelAnswer, WishFailed
from rollcall.schemas.agent_requests import AgentRequest, Choice, ErrorReply, ModelReply, Reply
from rollcall.schemas.errors import FailureCode
from rollcall.schemas.packed import ids_of, logprobs_of

STATUSES: Mapping[str, int] = {
    FailureCode.TOO_LONG: 400,
    FailureCode.NOT_RENDERABLE: 400,
    FailureCode.BAD_SAMPLING: 400,
    FailureCode.OUT_OF_BOUNDS: 400,
    FailureCode.UNWRITABLE: 400,
    FailureCode.TOO_LARGE: 400,
    FailureCode.UNKNOWN_POLICY: 404,
}
"""HTTP statuses of failures that no retry can mend; other failures are final too, but
not the agent's mistake."""
FINAL = 503

Outcomes = Sequence[ModelAnswer | WishFailed]
"""The outcomes of one request, indexed by choice."""


def reply_of(request: AgentRequest, outcomes: Outcomes) -> Reply:
    """Return the reply to a model request, given the outcomes of all its choices."""
    failed = _failed(outcomes)
    if failed is not None:
        return failed_reply(request.d, failed, STATUSES.get(failed.code, FINAL))
    answers = [each for each in outcomes if isinstance(each, ModelAnswer)]
    first = answers[0]
    name = first.command_id.hex() or request.d
    prompt_ids = tuple(ids_of(first.prompt_ids).tolist()) if request.token_ids else None
    choices = tuple(_choice(request, each) for each in answers)
    return ModelReply(request.d, choices, name, first.at_ms, first.prompt_tokens, prompt_ids)


def failed_reply(name: str, failed: WishFailed, status: int) -> ErrorReply:
    """Return the error reply to the request of this name."""
    return ErrorReply(name, status, failed.code, str(failed))


def system_fault_in(outcomes: Outcomes) -> WishFailed | None:
    """Return the failure, if the agent's request itself was valid."""
    failed = _failed(outcomes)
    return failed if failed is not None and failed.code not in STATUSES else None


def _failed(outcomes: Outcomes) -> WishFailed | None:
    """Return the first failure."""
    return next((each for each in outcomes if isinstance(each, WishFailed)), None)


def _choice(request: AgentRequest, answer: ModelAnswer) -> Choice:
    token_ids = (
        tuple(ids_of(answer.token_ids).tolist()) if request.logprobs or request.token_ids else None
    )
    logprobs = tuple(logprobs_of(answer.logprobs).tolist()) if request.logprobs else None
    return Choice(
        answer.text,
        answer.finish_reason,
        answer.message.tool_calls,
        answer.sampled_tokens,
        token_ids,
        logprobs,
        answer.stopped_by,
    )
