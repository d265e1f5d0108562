"""Anthropic's messages: `POST /v1/messages`, and `/v1/messages/count_tokens`.

A message of the API holds blocks. A user turn with several tool results becomes several `tool`
messages here, and text beside them a user message. The text of a result that is an error says so.
Thinking blocks in requests are ignored. `anthropic_answers.py` makes the answers.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import orjson
from pydantic import Field

from rollcall.inference.dialects.anthropic_answers import error_value, message_events, message_of
from rollcall.inference.dialects.dialect import (
    Conversations,
    Dialect,
    ParsedRequest,
    policy_of,
    sent_event,
)
from rollcall.inference.dialects.read_body import (
    BODY_CONFIG,
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
from rollcall.schemas.agent_requests import AgentRequest, ModelReply
from rollcall.schemas.messages import Message
from rollcall.schemas.tool_calls import (
    ToolCall,
    json_text,
    tool_calls_text,
)

Value = dict[str, Any]
ERROR = "Error: "
"""The prefix of a result that the client marks as an error: templates have no field for that."""


@dataclass(frozen=True, slots=True)
class _ToolUse:
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
class _Thinking:
    type: Literal["thinking", "redacted_thinking"]


@dataclass(frozen=True, slots=True)
class _User:
    role: Literal["user"]
    content: str | Many[Annotated[TextPart | _ToolResultBlock, Field(discriminator="type")]]


@dataclass(frozen=True, slots=True)
class _AssistantTurn:
    role: Literal["assistant"]
    content: str | Many[Annotated[TextPart | _ToolUse | _Thinking, Field(discriminator="type")]]


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
    """The part of a request whose tokens are counted."""

    __pydantic_config__ = BODY_CONFIG

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
    fields = read_body(body, _MessagesBody)
    request = AgentRequest(
        "model",
        _messages(fields),
        policy=policy_of(fields.model, policies),
        tools=_tools(fields),
        tool_choice=_choice_of(fields),
        stop=tuple(text for text in fields.stop_sequences or () if text),
        max_tokens=fields.max_tokens,
        temperature=fields.temperature,
        top_p=fields.top_p,
    )
    return ParsedRequest(request, stream=bool(fields.stream))


def _read_count(body: bytes, policies: Sequence[str], _: Conversations) -> ParsedRequest:
    fields = read_body(body, _Prompt)
    policy = policy_of(fields.model, policies)
    return ParsedRequest(
        AgentRequest("model", _messages(fields), policy=policy, tools=_tools(fields), max_tokens=0)
    )


def _messages(fields: _Prompt) -> tuple[Message, ...]:
    system = joined(fields.system)
    messages = [BodyMessage(Message("system", system))] if system else []
    for at, message in enumerate(fields.messages):
        if isinstance(message, _AssistantTurn):
            messages.append(_assistant(message.content, at))
        elif isinstance(message, _Instruction):
            messages.append(BodyMessage(Message("system", joined(message.content))))
        elif isinstance(message.content, str):
            messages.append(BodyMessage(Message("user", message.content)))
        else:
            messages += _user(message.content, at)
    return match_results(messages)


def _assistant(content: str | Sequence[Any], at: int) -> BodyMessage:
    if isinstance(content, str):
        return BodyMessage(Message("assistant", content))
    uses = [(number, block) for number, block in enumerate(content) if isinstance(block, _ToolUse)]
    try:
        calls = [ToolCall(block.id, block.name, json_text(block.input)) for _, block in uses]
    except ValueError:
        msg = "hold a number that is not finite"
        raise malformed(msg, "messages") from None
    places = [
        ToolCallPlace(block.id, block.name, f"messages[{at}].content[{number}].id")
        for number, block in uses
    ]
    text = "".join(block.text for block in content if isinstance(block, TextPart))
    return BodyMessage(Message("assistant", text, tool_calls_text(calls)), calls=places)


def _user(blocks: Sequence[TextPart | _ToolResultBlock], at: int) -> list[BodyMessage]:
    """Return adjacent texts as one message, and each result as a message of its own."""
    messages: list[BodyMessage] = []
    texts: list[str] = []
    for number, block in enumerate(blocks):
        if isinstance(block, TextPart):
            texts.append(block.text)
            continue
        if texts:
            messages.append(BodyMessage(Message("user", "".join(texts))))
            texts = []
        result = Message("tool", _content_of(block), "", block.tool_use_id)
        messages.append(BodyMessage(result, f"messages[{at}].content[{number}].tool_use_id"))
    if texts or not messages:
        messages.append(BodyMessage(Message("user", "".join(texts))))
    return messages


def _content_of(result: _ToolResultBlock) -> str:
    content = joined(result.content)
    return f"{ERROR}{content}" if result.is_error else content


def _tools(fields: _Prompt) -> str:
    return tools_text((t.name, t.description, t.input_schema) for t in fields.tools or ())


def _choice_of(fields: _Prompt) -> str:
    choice = fields.tool_choice
    if isinstance(choice, _ChosenTool):
        return tool_choice_of("named", choice.name, [tool.name for tool in fields.tools or ()])
    return {"any": "required"}.get(choice.type, choice.type) if choice else "auto"


def _body(parsed: ParsedRequest, reply: ModelReply) -> bytes:
    return orjson.dumps(message_of(parsed, reply))


def _events(parsed: ParsedRequest, reply: ModelReply) -> bytes:
    return message_events(message_of(parsed, reply))


def _count_body(_: ParsedRequest, reply: ModelReply) -> bytes:
    return orjson.dumps({"input_tokens": reply.prompt_tokens})


MESSAGES = Dialect(
    "messages",
    read=_read,
    body=_body,
    events=_events,
    error=lambda declined: orjson.dumps(error_value(declined)),
    error_event=lambda declined: sent_event(error_value(declined), "error"),
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
