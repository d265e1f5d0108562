"""The output of OpenAI's responses: the items of an answer, and a whole response as events."""

from collections.abc import Iterable, Iterator
from typing import Any

from rollcall.inference.dialects.dialect import ParsedRequest, sent_event
from rollcall.inference.dialects.openai_parts import sampled_logprobs
from rollcall.schemas.agent_requests import Choice, ModelReply
from rollcall.schemas.tool_calls import ToolCall, tool_calls_of

Value = dict[str, Any]


def items_of(parsed: ParsedRequest, reply: ModelReply) -> list[Value]:
    """Return a message item, left out if it is empty beside calls, then the calls."""
    choice = reply.choices[0]
    calls = tool_calls_of(choice.tool_calls)
    message = [_message_item(parsed, reply, choice)] if choice.text or not calls else []
    return message + [_call_item(reply, at, call) for at, call in enumerate(calls)]


def _message_item(parsed: ParsedRequest, reply: ModelReply, choice: Choice) -> Value:
    return {
        "type": "message",
        "id": f"msg_{reply.id}",
        "role": "assistant",
        "status": "incomplete" if choice.finish == "length" else "completed",
        "content": [_text_part(parsed, choice)],
    }


def _text_part(parsed: ParsedRequest, choice: Choice) -> Value:
    logprobs: list[Value] = []
    if parsed.request.logprobs:
        logprobs = sampled_logprobs(choice, alternatives=parsed.alternatives, no_bytes=[])
    return {"type": "output_text", "text": choice.text, "annotations": [], "logprobs": logprobs}


def _call_item(reply: ModelReply, at: int, call: ToolCall) -> Value:
    return {
        "type": "function_call",
        "id": f"fc_{reply.id}_{at}",
        "call_id": call.id,
        "name": call.name,
        "arguments": call.arguments,
        "status": "completed",
    }


def response_events(head: Value, whole: Value) -> bytes:
    """Return all events of a stream: the response without and with its items, the items between.

    `head`: the fields of the response that are known before the answer.
    """
    started = head | {
        "status": "in_progress",
        "incomplete_details": None,
        "output": [],
        "usage": None,
    }
    events = [
        ("response.created", {"response": started}),
        ("response.in_progress", {"response": started}),
        *(event for at, item in enumerate(whole["output"]) for event in _item_events(at, item)),
        (f"response.{whole['status']}", {"response": whole}),
    ]
    return b"".join(
        sent_event({"type": name, "sequence_number": number} | fields, name)
        for number, (name, fields) in enumerate(events)
    )


def _item_events(at: int, item: Value) -> Iterator[tuple[str, Value]]:
    empty: Value = {"content": []} if item["type"] == "message" else {"arguments": ""}
    started = item | {"status": "in_progress"} | empty
    yield "response.output_item.added", {"output_index": at, "item": started}
    place = {"output_index": at, "item_id": item["id"]}
    deltas = _text_deltas if item["type"] == "message" else _argument_deltas
    for name, fields in deltas(item):
        yield f"response.{name}", place | fields
    yield "response.output_item.done", {"output_index": at, "item": item}


def _text_deltas(item: Value) -> Iterable[tuple[str, Value]]:
    (part,) = item["content"]
    text, logprobs, place = part["text"], part["logprobs"], {"content_index": 0}
    yield "content_part.added", place | {"part": part | {"text": "", "logprobs": []}}
    if text:
        yield "output_text.delta", place | {"delta": text, "logprobs": logprobs}
    yield "output_text.done", place | {"text": text, "logprobs": logprobs}
    yield "content_part.done", place | {"part": part}


def _argument_deltas(item: Value) -> Iterable[tuple[str, Value]]:
    arguments = item["arguments"]
    yield "function_call_arguments.delta", {"delta": arguments}
    yield "function_call_arguments.done", {"arguments": arguments, "name": item["name"]}
