"""Anthropic's messages: `POST /v1/messages`, and `/v1/messages/count_tokens`.

A message there holds blocks: a user turn with several results becomes several `tool` messages here,
and text beside them a user message. A result that is an error says so in its text. `input` is an
object; arguments that are no object are returned as text. Thinking blocks in requests are ignored.

A stop string that ended an answer is named if the request asked for it; if it is the rollout's own,
the stop reason is the end of the turn.
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
    TooLong,
    finish_word,
    policy_of,
    sent_event,
)
from rollcall.inference.dialects.message_events import message_events
from rollcall.inference.dialects.read_body import (
    TAKEN,
    Content,
    Many,
    Messages,
    Probability,
    Temperature,
    TextPart,
    Tokens,
    joined,
    malformed,
    read_body,
    tool_choice_of,
    tools_text,
)
from rollcall.inference.dialects.tool_results import BodyMessage, ToolCallPlace, match_results
from rollcall.schemas.agent_requests import AgentRequest, Choice, ModelReply
from rollcall.schemas.messages import Message
from rollcall.schemas.tool_calls import (
    ToolCall,
    arguments_of,
    json_text,
    tool_calls_of,
    tool_calls_text,
)

Value = dict[str, Any]
KINDS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    529: "overloaded_error",
}
STOPPED = "stop_sequence"
ERROR = "Error: "
"""The prefix of a result that the client marks as an error; templates have no field for that."""


@dataclass(frozen=True, slots=True)
class _Used:
    type: Literal["tool_use"]
    id: str
    name: str
    input: Value


@dataclass(frozen=True, slots=True)
class _ToolResultBlock:
    type: Literal["tool_result"]
    tool_use_id: str
    content: Content = None
    is_error: bool | None = None


@dataclass(frozen=True, slots=True)
class _Thought:
    type: Literal["thinking", "redacted_thinking"]


@dataclass(frozen=True, slots=True)
class _User:
    role: Literal["user"]
    content: str | Many[Annotated[TextPart | _ToolResultBlock, Field(discriminator="type")]]


@dataclass(frozen=True, slots=True)
class _AssistantTurn:
    role: Literal["assistant"]
    content: str | Many[Annotated[TextPart | _Used | _Thought, Field(discriminator="type")]]


@dataclass(frozen=True, slots=True)
class _Instruction:
    """An instruction to the policy in the middle of a conversation."""

    role: Literal["system"]
    content: str | Many[TextPart]


@dataclass(frozen=True, slots=True)
class _MessagesTool:
    name: str
    input_schema: Value
    description: str | None = None
    type: Literal["custom"] | None = None


@dataclass(frozen=True, slots=True)
class _ToolMode:
    type: Literal["auto", "any", "none"]


@dataclass(frozen=True, slots=True)
class _ChosenTool:
    type: Literal["tool"]
    name: str


@dataclass(frozen=True, slots=True)
class _Prompt:
    """The part of a request that is counted."""

    __pydantic_config__ = TAKEN

    messages: Annotated[
        Messages[Annotated[_User | _AssistantTurn | _Instruction, Field(discriminator="role")]],
        Field(min_length=1),
    ]
    model: str | None = None
    system: Content = None
    tools: Many[_MessagesTool] | None = None
    tool_choice: Annotated[_ToolMode | _ChosenTool, Field(discriminator="type")] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _MessagesBody(_Prompt):
    max_tokens: Tokens
    stop_sequences: Many[str] | None = None
    temperature: Temperature | None = None
    top_p: Probability | None = None
    stream: bool | None = None


def _read(body: bytes, policies: Sequence[str], _: Conversations) -> ParsedRequest:
    taken = read_body(body, _MessagesBody)
    request = AgentRequest(
        "model",
        _messages(taken),
        policy=policy_of(taken.model, policies),
        tools=_tools(taken),
        tool_choice=_choice_of(taken),
        stop=tuple(text for text in taken.stop_sequences or () if text),
        max_tokens=taken.max_tokens,
        temperature=taken.temperature,
        top_p=taken.top_p,
    )
    return ParsedRequest(request, stream=bool(taken.stream))


def _read_count(body: bytes, policies: Sequence[str], _: Conversations) -> ParsedRequest:
    taken = read_body(body, _Prompt)
    policy = policy_of(taken.model, policies)
    return ParsedRequest(
        AgentRequest("model", _messages(taken), policy=policy, tools=_tools(taken), max_tokens=0)
    )


def _messages(taken: _Prompt) -> tuple[Message, ...]:
    system = joined(taken.system)
    said = [BodyMessage(Message("system", system))] if system else []
    for at, message in enumerate(taken.messages):
        if isinstance(message, _AssistantTurn):
            said.append(_assistant(message.content, at))
        elif isinstance(message, _Instruction):
            said.append(BodyMessage(Message("system", joined(message.content))))
        elif isinstance(message.content, str):
            said.append(BodyMessage(Message("user", message.content)))
        else:
            said += _user(message.content, at)
    return match_results(said)


def _assistant(content: str | Sequence[Any], at: int) -> BodyMessage:
    if isinstance(content, str):
        return BodyMessage(Message("assistant", content))
    used = [(number, block) for number, block in enumerate(content) if isinstance(block, _Used)]
    try:
        calls = [ToolCall(block.id, block.name, json_text(block.input)) for _, block in used]
    except ValueError:
        msg = "hold a number that is not finite"
        raise malformed(msg, "messages") from None
    places = [
        ToolCallPlace(block.id, block.name, f"messages[{at}].content[{number}].id")
        for number, block in used
    ]
    text = "".join(block.text for block in content if isinstance(block, TextPart))
    return BodyMessage(Message("assistant", text, tool_calls_text(calls)), calls=places)


def _user(blocks: Sequence[TextPart | _ToolResultBlock], at: int) -> list[BodyMessage]:
    """Return adjacent texts as one message, and each result as a message of its own."""
    said: list[BodyMessage] = []
    texts: list[str] = []
    for number, block in enumerate(blocks):
        if isinstance(block, TextPart):
            texts.append(block.text)
            continue
        if texts:
            said.append(BodyMessage(Message("user", "".join(texts))))
            texts = []
        result = Message("tool", _content_of(block), "", block.tool_use_id)
        said.append(BodyMessage(result, f"messages[{at}].content[{number}].tool_use_id"))
    if texts or not said:
        said.append(BodyMessage(Message("user", "".join(texts))))
    return said


def _content_of(result: _ToolResultBlock) -> str:
    content = joined(result.content)
    return f"{ERROR}{content}" if result.is_error else content


def _tools(taken: _Prompt) -> str:
    return tools_text((t.name, t.description, t.input_schema) for t in taken.tools or ())


def _choice_of(taken: _Prompt) -> str:
    choice = taken.tool_choice
    if isinstance(choice, _ChosenTool):
        return tool_choice_of("named", choice.name, [tool.name for tool in taken.tools or ()])
    return {"any": "required"}.get(choice.type, choice.type) if choice else "auto"


def _body(parsed: ParsedRequest, reply: ModelReply) -> bytes:
    return orjson.dumps(_message(parsed, reply))


def _events(parsed: ParsedRequest, reply: ModelReply) -> bytes:
    return message_events(_message(parsed, reply))


def _message(parsed: ParsedRequest, reply: ModelReply) -> Value:
    choice = reply.choices[0]
    stop = STOPPED if choice.stopped_by in parsed.request.stop else "end_turn"
    reason = finish_word(choice, length="max_tokens", calls="tool_use", stop=stop)
    return {
        "id": f"msg_{reply.id}",
        "type": "message",
        "role": "assistant",
        "model": parsed.request.policy,
        "content": _blocks(choice),
        "stop_reason": reason,
        "stop_sequence": choice.stopped_by if reason == STOPPED else None,
        "usage": {"input_tokens": reply.prompt_tokens, "output_tokens": reply.sampled_tokens},
    }


def _blocks(choice: Choice) -> list[Value]:
    """Return a text block, left out if it is empty beside calls, then the calls."""
    calls = tool_calls_of(choice.tool_calls)
    said = [{"type": "text", "text": choice.text}] if choice.text or not calls else []
    return said + [_call_block(call) for call in calls]


def _call_block(call: ToolCall) -> Value:
    if arguments_of(call.arguments) is None:
        return {"type": "text", "text": call.arguments}
    # Kept as text: orjson does not write integers of arbitrary size.
    given = orjson.Fragment(call.arguments)
    return {"type": "tool_use", "id": call.id, "name": call.name, "input": given}


def _count_body(_: ParsedRequest, reply: ModelReply) -> bytes:
    return orjson.dumps({"input_tokens": reply.prompt_tokens})


def _error(declined: Declined) -> Value:
    known = "invalid_request_error" if declined.status < 500 else "api_error"
    kind = KINDS.get(declined.status, known)
    return {"type": "error", "error": {"type": kind, "message": _words(declined)}}


def _words(declined: Declined) -> str:
    """Return the message; clients recognise a prompt that is too long by Anthropic's wording."""
    if isinstance(declined, TooLong):
        return f"prompt is too long: {declined.tokens} tokens > {declined.most} maximum"
    return str(declined)


MESSAGES = Dialect(
    "messages",
    read=_read,
    body=_body,
    events=_events,
    error=lambda declined: orjson.dumps(_error(declined)),
    error_event=lambda declined: sent_event(_error(declined), "error"),
    waiting=sent_event({"type": "ping"}, "ping"),
)
COUNT_TOKENS = Dialect(
    "count_tokens",
    read=_read_count,
    body=_count_body,
    events=_count_body,
    error=MESSAGES.error,
    error_event=MESSAGES.error_event,
)
