"""Tool calls in a canonical form: compact JSON with sorted keys.

`[{"id","type","function":{"name","arguments"}}]`. Calls that an engine parsed, that a journal
holds, that an agent sends back and that a template renders can thus be compared as texts.
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
    """One call of the policy; `arguments` is JSON, or the text that was sampled instead."""

    id: str
    name: str
    arguments: str


def tool_calls_text(calls: Sequence[ToolCall]) -> str:
    """Return the canonical text; empty for no calls."""
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
    """Parse a canonical text. Raises WireError for anything else."""
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
    """Return a JSON object without spaces, its keys in their order; other texts unchanged."""
    value = arguments_of(text)
    return text if value is None else json_text(value)


def arguments_of(text: str) -> dict[str, Any] | None:
    """Parse a JSON object; return None if the text is not one.

    Numbers keep all their digits, as they were sampled. An object nested deeper than MOST_DEEP is
    rejected, since Python's parser would fail on it or not, depending on its stack.
    """
    try:
        orjson.loads(text)  # the strict reader: lone surrogates, NaN
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) and not _deep(text, value) else None


def json_text(value: object) -> str:
    """Write JSON without spaces and without escapes.

    Unlike orjson, it writes integers of any size, which a policy may have sampled.
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
        msg = f"expected a list, found {describe_value(value)}"
        raise TypeError(msg)
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        msg = f"expected a text, found {describe_value(value)}"
        raise TypeError(msg)
    return value
