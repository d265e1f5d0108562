"""OpenAI's responses: `POST /v1/responses`.

`previous_response_id` continues from a response of the same session, without its instructions.
The gateway keeps the conversation for that, unless `store` is false. It stores nothing else, so a
`conversation` and a stored `prompt` are refused. Reasoning options are repeated in the response and
otherwise ignored, since policies here make no reasoning items.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import orjson
from pydantic import Field

from rollcall.inference.dialects.dialect import (
    Conversations,
    Declined,
    Dialect,
    ParsedRequest,
    policy_of,
    sent_event,
)
from rollcall.inference.dialects.openai_parts import check_top_logprobs, error_value, unsupported
from rollcall.inference.dialects.read_body import (
    BODY_CONFIG,
    Many,
    Messages,
    Probability,
    Temperature,
    Tokens,
    malformed,
    read_body,
    tool_choice_of,
    tools_text,
)
from rollcall.inference.dialects.response_input import Item, turns_of
from rollcall.inference.dialects.response_output import items_of, response_events
from rollcall.schemas.agent_requests import AgentRequest, ModelReply, shared_length
from rollcall.schemas.messages import Message
from rollcall.schemas.tool_calls import json_text
from rollcall.schemas.untrusted_text import clean_text

Value = dict[str, Any]
COMPARED = 8
"""The number of latest responses whose messages are compared with those of a request."""
LOGPROBS = "message.output_text.logprobs"
"""The value of `include` that requests log-probabilities."""
NAME_CHARS = 80


@dataclass(frozen=True, slots=True)
class _FlatTool:
    type: Literal["function"]
    name: str
    description: str | None = None
    parameters: Value | None = None
    strict: bool | None = None


@dataclass(frozen=True, slots=True)
class _FlatChoice:
    type: Literal["function"]
    name: str


@dataclass(frozen=True, slots=True)
class _RequestedReasoning:
    effort: str | None = None
    summary: str | None = None


@dataclass(frozen=True, slots=True)
class _ResponsesBody:
    __pydantic_config__ = BODY_CONFIG

    input: str | Messages[Item]
    model: str | None = None
    instructions: str | None = None
    previous_response_id: str | None = None
    tools: Many[_FlatTool] | None = None
    tool_choice: Literal["auto", "none", "required"] | _FlatChoice | None = None
    max_output_tokens: Tokens | None = None
    temperature: Temperature | None = None
    top_p: Probability | None = None
    stream: bool | None = None
    store: bool | None = None
    include: Many[str] | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    reasoning: _RequestedReasoning | None = None
    metadata: dict[str, str] | None = None
    parallel_tool_calls: bool | None = None
    conversation: Any = None
    prompt: Any = None


def _read(body: bytes, policies: Sequence[str], earlier: Conversations) -> ParsedRequest:
    fields = read_body(body, _ResponsesBody)
    _check_supported(fields)
    tools, logprobs = fields.tools or [], LOGPROBS in (fields.include or ())
    before = _before(fields.previous_response_id, earlier)
    turns = _shared(turns_of(fields.input, before, earlier), earlier)
    if not turns:
        msg = "must hold a message, found none"
        raise malformed(msg, "input")
    system = (Message("system", fields.instructions),) if fields.instructions else ()
    request = AgentRequest(
        "model",
        system + turns,
        policy=policy_of(fields.model, policies),
        tools=tools_text((tool.name, tool.description, tool.parameters) for tool in tools),
        tool_choice=_choice_of(fields.tool_choice, [tool.name for tool in tools]),
        max_tokens=fields.max_output_tokens,
        logprobs=logprobs,
        temperature=fields.temperature,
        top_p=fields.top_p,
    )
    return ParsedRequest(
        request,
        stream=bool(fields.stream),
        echo=_echo(fields),
        turns=turns if fields.store is not False else (),
        alternatives=bool(fields.top_logprobs),
    )


def _check_supported(fields: _ResponsesBody) -> None:
    """Raise Declined for fields that cannot be ignored without changing the request's meaning."""
    if fields.conversation is not None:
        raise unsupported("conversation", "Use previous_response_id, or send the items.")
    if fields.prompt is not None:
        raise unsupported("prompt", "Send its text as instructions and input.")
    if LOGPROBS in (fields.include or ()):
        check_top_logprobs(fields.top_logprobs)


def _before(response_id: str | None, earlier: Conversations) -> tuple[Message, ...]:
    if response_id is None:
        return ()
    if response_id not in earlier:
        msg = f"Previous response with id '{clean_text(response_id, NAME_CHARS)}' not found."
        raise Declined(400, "previous_response_not_found", msg, param="previous_response_id")
    return tuple(earlier[response_id])


def _shared(turns: tuple[Message, ...], earlier: Conversations) -> tuple[Message, ...]:
    """Return the same turns, reusing message objects of earlier responses to save memory.

    Agents send the whole conversation at every turn.
    """
    latest = list(earlier.values())[-COMPARED:]
    known = max(latest, key=lambda those: shared_length(those, turns), default=())
    same = shared_length(known, turns)
    return (*known[:same], *turns[same:])


def _choice_of(choice: str | _FlatChoice | None, names: Sequence[str]) -> str:
    if isinstance(choice, _FlatChoice):
        return tool_choice_of("named", choice.name, names)
    return choice or "auto"


def _echo(fields: _ResponsesBody) -> Value:
    choice, reasoning = fields.tool_choice, fields.reasoning or _RequestedReasoning()
    return {
        "instructions": fields.instructions,
        "max_output_tokens": fields.max_output_tokens,
        "metadata": fields.metadata or {},
        "parallel_tool_calls": fields.parallel_tool_calls is not False,
        "previous_response_id": fields.previous_response_id,
        "reasoning": {"effort": reasoning.effort, "summary": reasoning.summary},
        "store": fields.store is not False,
        "temperature": fields.temperature,
        "tool_choice": (
            {"type": "function", "name": choice.name}
            if isinstance(choice, _FlatChoice)
            else choice or "auto"
        ),
        "tools": [
            {
                "type": "function",
                "name": tool.name,
                "description": tool.description,
                # As text: orjson does not write integers of arbitrary size.
                "parameters": orjson.Fragment(json_text(tool.parameters)),
                "strict": bool(tool.strict),
            }
            for tool in fields.tools or ()
        ],
        "top_p": fields.top_p,
    }


def _body(parsed: ParsedRequest, reply: ModelReply) -> bytes:
    return orjson.dumps(_response(parsed, reply))


def _response(parsed: ParsedRequest, reply: ModelReply) -> Value:
    cut = reply.choices[0].finish == "length"
    prompt_tokens, sampled_tokens = reply.prompt_tokens, reply.sampled_tokens
    return _head(parsed, reply) | {
        "status": "incomplete" if cut else "completed",
        "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
        "output": items_of(parsed, reply),
        "usage": {
            "input_tokens": prompt_tokens,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": sampled_tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": prompt_tokens + sampled_tokens,
        },
    }


def _head(parsed: ParsedRequest, reply: ModelReply) -> Value:
    return {
        "id": f"resp_{reply.id}",
        "object": "response",
        "created_at": reply.at_ms // 1000,
        "model": parsed.request.policy,
        "error": None,
        **parsed.echo,
    }


def _events(parsed: ParsedRequest, reply: ModelReply) -> bytes:
    return response_events(_head(parsed, reply), _response(parsed, reply))


def _error_event(declined: Declined) -> bytes:
    """Return an event with both forms of an error: the API's, and the one that clients raise on."""
    flat = {
        "type": "error",
        "sequence_number": 0,
        "code": declined.code,
        "message": str(declined),
        "param": declined.param,
    }
    return sent_event(flat | error_value(declined), "error")


def _kept(parsed: ParsedRequest, reply: ModelReply) -> Conversations:
    if not parsed.turns:
        return {}
    choice = reply.choices[0]
    answer = Message("assistant", choice.text, choice.tool_calls)
    return {f"resp_{reply.id}": (*parsed.turns, answer)}


RESPONSES = Dialect(
    "responses",
    read=_read,
    body=_body,
    events=_events,
    error=lambda declined: orjson.dumps(error_value(declined)),
    error_event=_error_event,
    kept=_kept,
)
