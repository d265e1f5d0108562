"""A response of OpenAI's as the events of a stream."""

from collections.abc import Iterable, Iterator
from typing import Any

from rollcall.inference.dialects.dialect import sent_event

Value = dict[str, Any]


def response_events(head: Value, whole: Value) -> bytes:
    """Return the events: the whole response first and last, the items and deltas between.

    `head`: the fields of the response that are known before the answer.
    """
    empty: Value = {
        "status": "in_progress",
        "incomplete_details": None,
        "output": [],
        "usage": None,
    }
    begun = head | empty
    events = [
        ("response.created", {"response": begun}),
        ("response.in_progress", {"response": begun}),
        *(event for at, item in enumerate(whole["output"]) for event in _painted(at, item)),
        (f"response.{whole['status']}", {"response": whole}),
    ]
    return b"".join(
        sent_event({"type": name, "sequence_number": number} | fields, name)
        for number, (name, fields) in enumerate(events)
    )


def _painted(at: int, item: Value) -> Iterator[tuple[str, Value]]:
    hollow: Value = {"content": []} if item["type"] == "message" else {"arguments": ""}
    begun = item | {"status": "in_progress"} | hollow
    yield "response.output_item.added", {"output_index": at, "item": begun}
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
