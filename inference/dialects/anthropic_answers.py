"""Answers in the form of Anthropic's messages: a message, its events as a stream, an error.

A stop string that ended an answer is named if the request has it; if it is the rollout's own, the
stop reason is the end of the turn.
"""

from collections.abc import Iterator
from typing import Any

import orjson

from rollcall.inference.dialects.dialect import (
    Declined,
    ParsedRequest,
    TooLong,
    finish_reason,
    sent_event,
)
from rollcall.schemas.agent_requests import Choice, ModelReply
from rollcall.schemas.tool_calls import ToolCall, arguments_of, tool_calls_of

Value = dict[str, Any]
ERRORS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    529: "overloaded_error",
}
STOPPED = "stop_sequence"


def message_of(parsed: ParsedRequest, reply: ModelReply) -> Value:
    """Return the answer as a message."""
    choice = reply.choices[0]
    stop = STOPPED if choice.stopped_by in parsed.request.stop else "end_turn"
    reason = finish_reason(choice, length="max_tokens", calls="tool_use", stop=stop)
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
    text = [{"type": "text", "text": choice.text}] if choice.text or not calls else []
    return text + [_call_block(call) for call in calls]


def _call_block(call: ToolCall) -> Value:
    if arguments_of(call.arguments) is None:  # no object, as `input` must be
        return {"type": "text", "text": call.arguments}
    # Kept as text: orjson does not write integers of arbitrary size.
    arguments = orjson.Fragment(call.arguments)
    return {"type": "tool_use", "id": call.id, "name": call.name, "input": arguments}


def message_events(whole: Value) -> bytes:
    """Return all events, each with its name, from the empty message to its end."""
    stop = {name: whole[name] for name in ("stop_reason", "stop_sequence")}
    usage = whole["usage"]
    started = dict.fromkeys(stop) | {"content": [], "usage": usage | {"output_tokens": 0}}
    events: list[Value] = [
        {"type": "message_start", "message": whole | started},
        *(event for at, block in enumerate(whole["content"]) for event in _block_events(at, block)),
        {
            "type": "message_delta",
            "delta": stop,
            "usage": {"output_tokens": usage["output_tokens"]},
        },
        {"type": "message_stop"},
    ]
    return b"".join(sent_event(event, event["type"]) for event in events)


def _block_events(at: int, block: Value) -> Iterator[Value]:
    empty: Value
    if block["type"] == "text":
        empty, delta = {"text": ""}, {"type": "text_delta", "text": block["text"]}
    else:
        arguments = orjson.dumps(block["input"]).decode()
        empty, delta = {"input": {}}, {"type": "input_json_delta", "partial_json": arguments}
    yield {"type": "content_block_start", "index": at, "content_block": block | empty}
    yield {"type": "content_block_delta", "index": at, "delta": delta}
    yield {"type": "content_block_stop", "index": at}


def error_value(declined: Declined) -> Value:
    """Return a refusal as the API's error."""
    default = "invalid_request_error" if declined.status < 500 else "api_error"
    kind = ERRORS.get(declined.status, default)
    return {"type": "error", "error": {"type": kind, "message": _wording(declined)}}


def _wording(declined: Declined) -> str:
    """Return the message; clients recognise a prompt that is too long by Anthropic's wording."""
    if isinstance(declined, TooLong):
        return f"prompt is too long: {declined.tokens} tokens > {declined.most} maximum"
    return str(declined)
