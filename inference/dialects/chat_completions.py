"""OpenAI's chat completions: `POST /v1/chat/completions`.

`_ChatBody` lists the keys that are read, among them vLLM's `return_token_ids`; others are ignored.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import orjson
from pydantic import Field

from rollcall.inference.dialects.dialect import (
    Conversations,
    Dialect,
    ParsedRequest,
    finish_reason,
    policy_of,
    sent_event,
)
from rollcall.inference.dialects.openai_parts import (
    check_top_logprobs,
    error_value,
    sampled_logprobs,
)
from rollcall.inference.dialects.read_body import (
    BODY_CONFIG,
    Content,
    Many,
    Messages,
    Probability,
    Temperature,
    Tokens,
    joined,
    read_body,
    tool_choice_of,
    tools_text,
)
from rollcall.inference.dialects.tool_results import BodyMessage, ToolCallPlace, match_results
from rollcall.schemas.agent_requests import AgentRequest, Choice, ModelReply
from rollcall.schemas.messages import Message
from rollcall.schemas.tool_calls import ToolCall, tool_calls_of, tool_calls_text


@dataclass(frozen=True, slots=True)
class _CalledFunction:
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class _FunctionCalled:
    id: str
    function: _CalledFunction
    type: Literal["function"] = "function"


@dataclass(frozen=True, slots=True)
class _PlainMessage:
    role: Literal["system", "developer", "user"]
    content: Content = None
    name: str | None = None


@dataclass(frozen=True, slots=True)
class _AssistantMessage:
    role: Literal["assistant"]
    content: Content = None
    tool_calls: Many[_FunctionCalled] | None = None


@dataclass(frozen=True, slots=True)
class _ToolMessage:
    role: Literal["tool"]
    tool_call_id: str
    content: Content = None
    name: str | None = None


@dataclass(frozen=True, slots=True)
class _Function:
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class _FunctionTool:
    type: Literal["function"]
    function: _Function


@dataclass(frozen=True, slots=True)
class _FunctionName:
    name: str


@dataclass(frozen=True, slots=True)
class _ChosenFunction:
    type: Literal["function"]
    function: _FunctionName


@dataclass(frozen=True, slots=True)
class _StreamOptions:
    include_usage: bool | None = None


@dataclass(frozen=True, slots=True)
class _ChatBody:
    __pydantic_config__ = BODY_CONFIG

    messages: Annotated[
        Messages[
            Annotated[_PlainMessage | _AssistantMessage | _ToolMessage, Field(discriminator="role")]
        ],
        Field(min_length=1),
    ]
    model: str | None = None
    tools: Many[_FunctionTool] | None = None
    tool_choice: Literal["auto", "none", "required"] | _ChosenFunction | None = None
    stop: str | Many[str] | None = None
    max_tokens: Tokens | None = None
    max_completion_tokens: Tokens | None = None
    n: Annotated[int, Field(ge=1, le=128)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    return_token_ids: bool | None = None
    temperature: Temperature | None = None
    top_p: Probability | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    stream: bool | None = None
    stream_options: _StreamOptions | None = field(default=None)


def _read(body: bytes, policies: Sequence[str], _: Conversations) -> ParsedRequest:
    fields = read_body(body, _ChatBody)
    if fields.logprobs:
        check_top_logprobs(fields.top_logprobs)
    tools = fields.tools or []
    limits = [
        most for most in (fields.max_completion_tokens, fields.max_tokens) if most is not None
    ]
    stop = [fields.stop] if isinstance(fields.stop, str) else fields.stop or []
    request = AgentRequest(
        "model",
        match_results(_body_message(message, at) for at, message in enumerate(fields.messages)),
        policy=policy_of(fields.model, policies),
        tools=tools_text(
            (t.function.name, t.function.description, t.function.parameters) for t in tools
        ),
        tool_choice=_choice_of(fields.tool_choice, [tool.function.name for tool in tools]),
        stop=tuple(text for text in stop if text),
        max_tokens=min((most for most in limits if most is not None), default=None),
        n=fields.n or 1,
        logprobs=bool(fields.logprobs),
        token_ids=bool(fields.return_token_ids),
        temperature=fields.temperature,
        top_p=fields.top_p,
        seed=fields.seed,
    )
    usage = fields.stream_options is not None and bool(fields.stream_options.include_usage)
    return ParsedRequest(
        request,
        stream=bool(fields.stream),
        include_usage=usage,
        alternatives=bool(fields.top_logprobs),
    )


def _body_message(
    message: _PlainMessage | _AssistantMessage | _ToolMessage, at: int
) -> BodyMessage:
    content = joined(message.content)
    if isinstance(message, _AssistantMessage):
        calls = [
            ToolCall(call.id, call.function.name, call.function.arguments)
            for call in message.tool_calls or ()
        ]
        places = [
            ToolCallPlace(call.id, call.name, f"messages[{at}].tool_calls[{number}].id")
            for number, call in enumerate(calls)
        ]
        return BodyMessage(Message("assistant", content, tool_calls_text(calls)), calls=places)
    if isinstance(message, _ToolMessage):
        result = Message("tool", content, "", message.tool_call_id, message.name or "")
        return BodyMessage(result, f"messages[{at}].tool_call_id")
    role = "system" if message.role == "developer" else message.role
    return BodyMessage(Message(role, content, name=message.name or ""))


def _choice_of(choice: str | _ChosenFunction | None, names: Sequence[str]) -> str:
    if isinstance(choice, _ChosenFunction):
        return tool_choice_of("named", choice.function.name, names)
    return choice or "auto"


def _body(parsed: ParsedRequest, reply: ModelReply) -> bytes:
    choices = [
        {
            "index": index,
            "finish_reason": _finish(choice),
            "logprobs": _logprobs(parsed, choice),
            "message": _message(choice),
            **_token_ids(parsed, choice),
        }
        for index, choice in enumerate(reply.choices)
    ]
    whole = _head(parsed, reply, "chat.completion") | {"choices": choices, "usage": _usage(reply)}
    return orjson.dumps(whole | _prompt_ids(parsed, reply))


def _events(parsed: ParsedRequest, reply: ModelReply) -> bytes:
    head = _head(parsed, reply, "chat.completion.chunk")
    if parsed.include_usage:
        head |= {"usage": None}
    chunks = [
        head | {"choices": [{"index": index, "delta": {}, "finish_reason": None} | delta]}
        for index, choice in enumerate(reply.choices)
        for delta in _deltas(parsed, choice)
    ]
    chunks[0] |= _prompt_ids(parsed, reply)
    if parsed.include_usage:
        chunks.append(head | {"choices": [], "usage": _usage(reply)})
    return b"".join(map(sent_event, chunks)) + b"data: [DONE]\n\n"


def _deltas(parsed: ParsedRequest, choice: Choice) -> Iterable[dict[str, Any]]:
    """Yield the part of one choice that each chunk adds, in order."""
    yield {"delta": {"role": "assistant", "content": ""}}
    if choice.text:
        yield {"delta": {"content": choice.text}}
    for index, call in enumerate(tool_calls_of(choice.tool_calls)):
        function = {"name": call.name, "arguments": ""}
        start = {"index": index, "id": call.id, "type": "function", "function": function}
        yield {"delta": {"tool_calls": [start]}}
        arguments = {"index": index, "function": {"arguments": call.arguments}}
        yield {"delta": {"tool_calls": [arguments]}}
    logprobs = {"logprobs": _logprobs(parsed, choice)} if parsed.request.logprobs else {}
    yield {"finish_reason": _finish(choice)} | logprobs | _token_ids(parsed, choice)


def _head(parsed: ParsedRequest, reply: ModelReply, kind: str) -> dict[str, Any]:
    return {
        "id": reply.id,
        "object": kind,
        "created": reply.at_ms // 1000,
        "model": parsed.request.policy,
    }


def _message(choice: Choice) -> dict[str, Any]:
    calls = [
        {
            "id": call.id,
            "type": "function",
            "function": {"name": call.name, "arguments": call.arguments},
        }
        for call in tool_calls_of(choice.tool_calls)
    ]
    if not calls:
        return {"role": "assistant", "content": choice.text}
    return {"role": "assistant", "content": choice.text or None, "tool_calls": calls}


def _finish(choice: Choice) -> str:
    return finish_reason(choice, length="length", calls="tool_calls", stop="stop")


def _logprobs(parsed: ParsedRequest, choice: Choice) -> dict[str, Any] | None:
    if not parsed.request.logprobs:
        return None
    content = sampled_logprobs(choice, alternatives=parsed.alternatives)
    return {"content": content, "refusal": None}


def _token_ids(parsed: ParsedRequest, choice: Choice) -> dict[str, Any]:
    return {"token_ids": choice.token_ids} if parsed.request.token_ids else {}


def _prompt_ids(parsed: ParsedRequest, reply: ModelReply) -> dict[str, Any]:
    return {"prompt_token_ids": reply.prompt_token_ids} if parsed.request.token_ids else {}


def _usage(reply: ModelReply) -> dict[str, int]:
    return {
        "prompt_tokens": reply.prompt_tokens,
        "completion_tokens": reply.sampled_tokens,
        "total_tokens": reply.prompt_tokens + reply.sampled_tokens,
    }


CHAT = Dialect(
    "chat",
    read=_read,
    body=_body,
    events=_events,
    error=lambda declined: orjson.dumps(error_value(declined)),
    error_event=lambda declined: sent_event(error_value(declined)),
)
