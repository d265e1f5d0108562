"""What an agent is told of the calls that it asked for, and whether it is our fault if none came.

Pure: the program `hosted` makes its replies so, whenever it is folded.
"""

from collections.abc import Sequence

from consumers.agents.wishes import ModelAnswer, WishFailed
from schemas.asks import Ask, Choice, ErrorReply, ModelReply, Reply
from schemas.packed import ids_of, logprobs_of

STATUSES = {
    "too_long": 400, "not_renderable": 400, "bad_sampling": 400, "out_of_bounds": 400,
    "unwritable": 400, "too_large": 400, "unknown_policy": 404,
}  # fmt: skip
"""Of calls that no try will answer; any other failure is final too, but no mistake of the agent."""
FINAL = 503

Outcomes = Sequence[ModelAnswer | WishFailed]
"""Of one ask, by the number of its choices."""


def reply_of(ask: Ask, outcomes: Outcomes) -> Reply:
    """What came of all choices of a model ask."""
    failed = _failed(outcomes)
    if failed is not None:
        return failed_reply(ask.d, failed, STATUSES.get(failed.code, FINAL))
    said = [each for each in outcomes if isinstance(each, ModelAnswer)]
    first = said[0]
    name = first.command_id.hex() or ask.d
    prompt_ids = tuple(ids_of(first.prompt_ids).tolist()) if ask.token_ids else None
    choices = tuple(_choice(ask, each) for each in said)
    return ModelReply(ask.d, choices, name, first.at_ms, first.prompt_tokens, prompt_ids)


def failed_reply(name: str, failed: WishFailed, status: int) -> ErrorReply:
    """That an ask of this name has failed, and how."""
    return ErrorReply(name, status, failed.code, str(failed))


def fault_in(outcomes: Outcomes) -> WishFailed | None:
    """What failed, where the agent has asked for nothing that could not be."""
    failed = _failed(outcomes)
    return failed if failed is not None and failed.code not in STATUSES else None


def _failed(outcomes: Outcomes) -> WishFailed | None:
    """The first that did."""
    return next((each for each in outcomes if isinstance(each, WishFailed)), None)


def _choice(ask: Ask, said: ModelAnswer) -> Choice:
    token_ids = tuple(ids_of(said.token_ids).tolist()) if ask.logprobs or ask.token_ids else None
    logprobs = tuple(logprobs_of(said.logprobs).tolist()) if ask.logprobs else None
    return Choice(
        said.text, said.finish_reason, said.message.tool_calls, said.sampled_tokens,
        token_ids, logprobs, said.stopped_by,
    )  # fmt: skip
