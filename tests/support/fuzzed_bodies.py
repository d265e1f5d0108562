"""A body for every dialect, and bodies that differ from it in ways that nobody meant."""

import json
import random
from typing import Any

from rollcall.schemas.agent_requests import Choice
from rollcall.schemas.messages import Message
from rollcall.schemas.tool_calls import ToolCall, tool_calls_text
from tests.support.dialect_server import ID

CALL = {"id": "c", "type": "function", "function": {"name": "bash", "arguments": '{"a": 1}'}}
TEXT = {"type": "text", "text": "x"}
FUNCTION = {"name": "bash", "description": "d", "parameters": {"type": "object"}}
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {
        "model": "policy",
        "messages": [
            {"role": "system", "content": "x"},
            {"role": "user", "content": [TEXT, TEXT], "name": "n"},
            {"role": "assistant", "content": None, "tool_calls": [CALL]},
            {"role": "tool", "tool_call_id": "c", "content": "x"},
        ],
        "tools": [{"type": "function", "function": FUNCTION}],
        "tool_choice": {"type": "function", "function": {"name": "bash"}},
        "stop": ["a"],
        "max_tokens": 5,
        "n": 2,
        "temperature": 0.5,
        "top_p": 1,
        "seed": 3,
        "logprobs": True,
        "top_logprobs": 1,
        "stream": True,
        "return_token_ids": True,
        "stream_options": {"include_usage": True},
    },
    "/v1/responses": {
        "model": "policy",
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "x"}]},
            {"type": "reasoning", "summary": []},
            {"type": "item_reference", "id": f"fc_{ID}_0"},
            {"type": "function_call", "call_id": "d", "name": "bash", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "d", "output": "x"},
            {"type": "function_call_output", "call_id": "c", "output": "x"},
        ],
        "instructions": "x",
        "previous_response_id": None,
        "tools": [{"type": "function", **FUNCTION}],
        "tool_choice": "auto",
        "max_output_tokens": 5,
        "temperature": 1,
        "top_p": 0.5,
        "stream": False,
        "store": True,
        "include": ["message.output_text.logprobs"],
        "top_logprobs": 1,
        "metadata": {"a": "b"},
        "reasoning": {"effort": "low", "summary": None},
        "parallel_tool_calls": True,
    },
    "/v1/messages": {
        "model": "policy",
        "max_tokens": 5,
        "system": [TEXT],
        "messages": [
            {"role": "user", "content": "x"},
            {
                "role": "assistant",
                "content": [TEXT, {"type": "tool_use", "id": "c", "name": "b", "input": {"a": 1}}],
            },
            {
                "role": "user",
                "content": [{"type": "tool_result", "tool_use_id": "c", "content": [TEXT]}],
            },
        ],
        "tools": [{"name": "bash", "input_schema": {}}],
        "tool_choice": {"type": "any"},
        "stop_sequences": ["a"],
        "temperature": 0.2,
        "top_p": 0.9,
        "stream": True,
    },
}
BODIES["/v1/messages/count_tokens"] = BODIES["/v1/messages"]
ODD: list[Any] = [
    None, True, 0, -1, 1.5, 2**31, 2**63, 2**200, 1e308, "", "x", "\0", "\ud800", "\U0001f600" * 50,
    [], {}, [[]], [None], {"": None}, {"type": "text"}, {"type": []}, {"role": "user"},
    float("nan"), float("inf"), [{"type": "text", "text": 5}], "[" * 300, b"",
]  # fmt: skip
CALLED = tool_calls_text([ToolCall("c", "bash", '{"a":1}')])
EARLIER = {f"resp_{ID}": (Message("user", "x"), Message("assistant", "", CALLED))}
SAID = Choice("x", "stop", CALLED, 2, (1, 2), (-0.5, -0.5))


def changed(value: Any, rng: random.Random) -> Any:
    """The value with one place in it replaced, doubled, dropped or renamed."""
    if isinstance(value, dict) and value and rng.random() < 0.8:
        key = rng.choice(list(value))
        rest = {k: v for k, v in value.items() if k != key}
        kind = rng.random()
        if kind < 0.1:
            return rest
        if kind < 0.2:
            return rest | {rng.choice(["", "type", "role", "x\0"]): value[key]}
        return value | {key: changed(value[key], rng)}
    if isinstance(value, list) and value and rng.random() < 0.8:
        at = rng.randrange(len(value))
        if rng.random() < 0.2:
            return value[:at] + value[at + 1 :] * rng.choice([1, 30])
        return [*value[:at], changed(value[at], rng), *value[at + 1 :]]
    return rng.choice(ODD)


def written(value: Any, rng: random.Random) -> bytes:
    """As JSON, which Python writes for odder values than the standard has; sometimes broken."""
    body = json.dumps(value, default=lambda odd: "b", ensure_ascii=rng.random() < 0.5)
    data = body.encode("utf-8", "surrogatepass")
    kind = rng.random()
    if kind < 0.05:
        return data[: rng.randrange(len(data) + 1)]
    if kind < 0.1:
        at = rng.randrange(len(data) + 1)
        return data[:at] + rng.randbytes(2) + data[at:]
    return data
