"""A message of Anthropic's as the events of a stream."""

from collections.abc import Iterator
from typing import Any

import orjson

from rollcall.inference.dialects.dialect import sent_event

Value = dict[str, Any]


def message_events(whole: Value) -> bytes:
    """Return all events, each with its name, from the empty message to its end."""
    stop = {name: whole[name] for name in ("stop_reason", "stop_sequence")}
    usage = whole["usage"]
    begun = dict.fromkeys(stop) | {"content": [], "usage": usage | {"output_tokens": 0}}
    events: list[Value] = [
        {"type": "message_start", "message": whole | begun},
        *(event for at, block in enumerate(whole["content"]) for event in _painted(at, block)),
        {
            "type": "message_delta",
            "delta": stop,
            "usage": {"output_tokens": usage["output_tokens"]},
        },
        {"type": "message_stop"},
    ]
    return b"".join(sent_event(event, event["type"]) for event in events)


def _painted(at: int, block: Value) -> Iterator[Value]:
    hollow: Value
    if block["type"] == "text":
        hollow, delta = {"text": ""}, {"type": "text_delta", "text": block["text"]}
    else:
        arguments = orjson.dumps(block["input"]).decode()
        hollow, delta = {"input": {}}, {"type": "input_json_delta", "partial_json": arguments}
    yield {"type": "content_block_start", "index": at, "content_block": block | hollow}
    yield {"type": "content_block_delta", "index": at, "delta": delta}
    yield {"type": "content_block_stop", "index": at}
