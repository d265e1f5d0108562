"""OpenAI's responses: `POST /v1/responses`.

A turn of the assistant is a message and, after it, the calls that it makes: several items there,
one message here. Reasoning items of others are passed over. `previous_response_id` goes on from a
response of the same session, without its instructions; the gateway keeps what that takes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import orjson
from pydantic import Discriminator, Tag

from inference.dialects.dialect import (
    AgentRequest,
    Conversations,
    Declined,
    Dialect,
    policy_of,
    sent_event,
)
from inference.dialects.openai_errors import error_value
from inference.dialects.read_body import (
    TAKEN,
    Many,
    Probability,
    Temperature,
    Tokens,
    malformed,
    read_body,
    tool_choice_of,
    tools_text,
)
from inference.dialects.response_events import response_events
from inference.dialects.response_items import items_of
from schemas.asks import Ask, ModelReply, shared_length
from schemas.messages import Message
from schemas.tool_calls import ToolCall, tool_calls_text

Value = dict[str, Any]
LOOKED_AT = 8
"""Earlier responses with which a request may share its messages, the latest ones."""


@dataclass(frozen=True, slots=True)
class _Part:
    type: Literal["input_text", "output_text"]
    text: str


@dataclass(frozen=True, slots=True)
class _Said:
    role: Literal["system", "developer", "user", "assistant"]
    content: str | Many[_Part]
    type: Literal["message"] | None = None


@dataclass(frozen=True, slots=True)
class _Called:
    type: Literal["function_call"]
    call_id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class _Result:
    type: Literal["function_call_output"]
    call_id: str
    output: str | Many[_Part]


@dataclass(frozen=True, slots=True)
class _Reasoning:
    type: Literal["reasoning"]


def _type_of(item: object) -> str:
    """Messages are the items that need not say what they are."""
    return item.get("type") or "message" if isinstance(item, dict) else "message"


_Item = Annotated[
    Annotated[_Said, Tag("message")]
    | Annotated[_Called, Tag("function_call")]
    | Annotated[_Result, Tag("function_call_output")]
    | Annotated[_Reasoning, Tag("reasoning")],
    Discriminator(_type_of),
]


@dataclass(frozen=True, slots=True)
class _Tool:
    type: Literal["function"]
    name: str
    description: str | None = None
    parameters: Value | None = None
    strict: bool | None = None


@dataclass(frozen=True, slots=True)
class _NamedChoice:
    type: Literal["function"]
    name: str


@dataclass(frozen=True, slots=True)
class _Body:
    __pydantic_config__ = TAKEN

    input: str | Many[_Item]
    model: str | None = None
    instructions: str | None = None
    previous_response_id: str | None = None
    tools: Many[_Tool] | None = None
    tool_choice: Literal["auto", "none", "required"] | _NamedChoice | None = None
    max_output_tokens: Tokens | None = None
    temperature: Temperature | None = None
    top_p: Probability | None = None
    stream: bool | None = None
    store: bool | None = None


def _read(body: bytes, policies: Sequence[str], earlier: Conversations) -> AgentRequest:
    taken = read_body(body, _Body)
    tools = taken.tools or []
    turns = _shared(_before(taken.previous_response_id, earlier) + _turns(taken.input), earlier)
    if not turns:
        msg = "must hold a message, found none"
        raise malformed(msg, "input")
    said = (Message("system", taken.instructions),) if taken.instructions else ()
    ask = Ask(
        "model",
        said + turns,
        policy=policy_of(taken.model, policies),
        tools=tools_text((tool.name, tool.description, tool.parameters) for tool in tools),
        tool_choice=_choice_of(taken.tool_choice, [tool.name for tool in tools]),
        max_tokens=taken.max_output_tokens,
        temperature=taken.temperature,
        top_p=taken.top_p,
    )
    return AgentRequest(ask, stream=bool(taken.stream), echo=_echo(taken), turns=turns)


def _before(response_id: str | None, earlier: Conversations) -> tuple[Message, ...]:
    if response_id is None:
        return ()
    if response_id not in earlier:
        msg = f"names {response_id!r}, which is no response of this session"
        raise malformed(msg, "previous_response_id")
    return earlier[response_id]


def _shared(turns: tuple[Message, ...], earlier: Conversations) -> tuple[Message, ...]:
    """The same, of the messages that are held already: agents tell the whole at every turn."""
    latest = list(earlier.values())[-LOOKED_AT:]
    known = max(latest, key=lambda those: shared_length(those, turns), default=())
    same = shared_length(known, turns)
    return known[:same] + turns[same:]


def _turns(items: str | Sequence[Any]) -> tuple[Message, ...]:
    """Items as messages; calls belong to the turn that they follow."""
    if isinstance(items, str):
        return (Message("user", items),)
    turns: list[tuple[str, str, list[ToolCall], str]] = []
    for item in items:
        if isinstance(item, _Said):
            role = "system" if item.role == "developer" else item.role
            turns.append((role, _joined(item.content), [], ""))
        elif isinstance(item, _Result):
            turns.append(("tool", _joined(item.output), [], item.call_id))
        elif isinstance(item, _Called):
            if not turns or turns[-1][0] != "assistant":
                turns.append(("assistant", "", [], ""))
            turns[-1][2].append(ToolCall(item.call_id, item.name, item.arguments))
    return tuple(
        Message(role, content, tool_calls_text(calls), call_id)
        for role, content, calls, call_id in turns
    )


def _joined(content: str | Sequence[_Part]) -> str:
    return content if isinstance(content, str) else "".join(part.text for part in content)


def _choice_of(choice: str | _NamedChoice | None, names: Sequence[str]) -> str:
    if isinstance(choice, _NamedChoice):
        return tool_choice_of("named", choice.name, names)
    return choice or "auto"


def _echo(taken: _Body) -> Value:
    choice = taken.tool_choice
    return {
        "instructions": taken.instructions,
        "max_output_tokens": taken.max_output_tokens,
        "parallel_tool_calls": True,
        "previous_response_id": taken.previous_response_id,
        "store": taken.store is not False,
        "temperature": taken.temperature,
        "tool_choice": (
            {"type": "function", "name": choice.name}
            if isinstance(choice, _NamedChoice)
            else choice or "auto"
        ),
        "tools": [
            {
                "type": "function",
                "name": tool.name,
                "description": tool.description,
                "parameters": tool.parameters,
                "strict": bool(tool.strict),
            }
            for tool in taken.tools or ()
        ],
        "top_p": taken.top_p,
    }


def _body(request: AgentRequest, reply: ModelReply) -> bytes:
    return orjson.dumps(_response(request, reply))


def _response(request: AgentRequest, reply: ModelReply) -> Value:
    cut = reply.choices[0].finish == "length"
    read, made = reply.prompt_tokens, reply.sampled_tokens
    return _head(request, reply) | {
        "status": "incomplete" if cut else "completed",
        "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
        "output": items_of(reply),
        "usage": {
            "input_tokens": read,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": made,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": read + made,
        },
    }


def _head(request: AgentRequest, reply: ModelReply) -> Value:
    return {
        "id": f"resp_{reply.id}",
        "object": "response",
        "created_at": reply.at_ms // 1000,
        "model": request.ask.policy,
        "error": None,
        "metadata": {},
        **request.echo,
    }


def _events(request: AgentRequest, reply: ModelReply) -> bytes:
    return response_events(_head(request, reply), _response(request, reply))


def _error_event(declined: Declined) -> bytes:
    """With both forms of an error: the API's own, and the one on which clients raise."""
    flat = {
        "type": "error",
        "sequence_number": 0,
        "code": declined.code,
        "message": str(declined),
        "param": declined.param,
    }
    return sent_event(flat | error_value(declined), "error")


def _kept(request: AgentRequest, reply: ModelReply) -> Conversations:
    if not request.echo["store"]:
        return {}
    choice = reply.choices[0]
    said = Message("assistant", choice.text, choice.tool_calls)
    return {f"resp_{reply.id}": (*request.turns, said)}


RESPONSES = Dialect(
    "responses",
    read=_read,
    body=_body,
    events=_events,
    error=lambda declined: orjson.dumps(error_value(declined)),
    error_event=_error_event,
    kept=_kept,
)
