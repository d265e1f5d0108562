"""Tool calls in the one form in which two sides compare them: compact JSON, keys in one order.

`[{"id","type","function":{"name","arguments"}}]`: what an engine parsed, what a journal holds, what
an agent sends back, and what a template renders are equal texts where they mean the same.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from rollcall.schemas.errors import WireError
from rollcall.schemas.untrusted_text import describe_value

MOST_DEEP = 200


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call that the policy makes; `arguments` is JSON, or whatever was said in its place."""

    id: str
    name: str
    arguments: str


def tool_calls_text(calls: Sequence[ToolCall]) -> str:
    """The canonical text; empty for no calls."""
    if not calls:
        return ""
    values = [
        {
            "id": call.id,
            "type": "function",
            "function": {"name": call.name, "arguments": canonical_arguments(call.arguments)},
        }
        for call in calls
    ]
    return orjson.dumps(values).decode()


def tool_calls_of(text: str) -> tuple[ToolCall, ...]:
    """The calls in a canonical text. Raises WireError for anything else."""
    if not text:
        return ()
    try:
        return tuple(
            ToolCall(_text(one["id"]), _text(one["function"]["name"]), _text(arguments))
            for one in _list(orjson.loads(text))
            for arguments in [one["function"]["arguments"]]
        )
    except (orjson.JSONDecodeError, KeyError, TypeError, IndexError) as error:
        msg = (
            f'tool calls must be a JSON list of {{"id", "function"}}, found {describe_value(text)}'
        )
        raise WireError(msg) from error


def canonical_arguments(text: str) -> str:
    """A JSON object without spaces, its keys in their order; anything else as it is."""
    value = arguments_of(text)
    return text if value is None else json_text(value)


def arguments_of(text: str) -> dict[str, Any] | None:
    """The JSON object that the text is; None when it is none.

    Numbers keep their digits: what was sampled is not rounded to 64 bits. One that is nested more
    than MOST_DEEP is none, since Python reads those or not, as its stack stands.
    """
    try:
        orjson.loads(text)  # the strict reader: lone surrogates, NaN
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) and not _deep(text, value) else None


def json_text(value: object) -> str:
    """JSON without spaces, characters as they are.

    Unlike orjson, it writes integers of any size, for they may have been sampled.
    """
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def _deep(text: str, value: object) -> bool:
    if text.count("[") + text.count("{") <= MOST_DEEP:
        return False
    level: list[Any] = [value]
    for _ in range(MOST_DEEP):
        lists = (one.values() if isinstance(one, dict) else one for one in level)
        level = [one for inner in lists for one in inner if isinstance(one, dict | list)]
    return bool(level)


def _list(value: object) -> list[Any]:
    if not isinstance(value, list):
        msg = f"a list was meant, found {describe_value(value)}"
        raise TypeError(msg)
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        msg = f"a text was meant, found {describe_value(value)}"
        raise TypeError(msg)
    return value
