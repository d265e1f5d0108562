"""Tool calls within a policy's text: written for the policy, and parsed from its answers.

A template declares the format that its policy was taught; for a tokenizer's own chat template it
may be detected. Text that does not parse stays content, and sampled text is never repaired:
training uses the tokens, the agent the parsed calls. A call's id is a function of its command, so a
repeated answer has the same ids.
"""

import json
import re
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from rollcall.schemas.errors import FailureCode, Refused, WorkFailed
from rollcall.schemas.messages import Message
from rollcall.schemas.tool_calls import (
    ToolCall,
    arguments_of,
    json_text,
    tool_calls_of,
    tool_calls_text,
)
from rollcall.schemas.untrusted_text import clean_text

NONE = "none"
"""The format of a template that has no form for tools."""

Calls = list[tuple[str, str]]
"""The names and arguments of calls."""


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """One way to write tools into text, and to read calls from it."""

    definitions: Callable[[list[Any]], str]
    """Render the tools for the end of the system message."""
    call: Callable[[ToolCall], str]
    """Render one call as the policy itself writes it."""
    result: Callable[[str], str]
    """Render the result of a call as the content of a message of role `tool`."""
    parsed: Callable[[str], tuple[str, Calls]]
    """Parse an answer into its content without the calls, and the calls."""
    marks: tuple[str, ...]
    """The texts of a call that a policy must be able to write, in order."""
    taught: re.Pattern[str]
    """The pattern of a Jinja chat template that teaches this format."""


def with_tools_written(of: ToolFormat, messages: Sequence[Message], tools: str) -> list[Message]:
    """Return messages with tools and calls written into their contents; `tools` may be empty.

    Raises WorkFailed(`not_renderable`) for tools that are no JSON list.
    """
    written = [_with_calls_written(of, message) for message in messages]
    if not tools:
        return written
    definitions = of.definitions(offered_in(tools))
    if written and written[0].role == "system":
        system = replace(written[0], content=f"{written[0].content}\n\n{definitions}")
        return [system, *written[1:]]
    return [Message("system", definitions), *written]


def offered_in(tools: str) -> list[Any]:
    """Parse the tools of a call; raises WorkFailed(`not_renderable`) if they are no JSON list."""
    try:
        value = json.loads(tools)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, list):
        msg = f"tools must be a JSON list, found {clean_text(tools, 80)!r}"
        raise WorkFailed(FailureCode.NOT_RENDERABLE, msg, retriable=False)
    return value


def calls_in(name: str, text: str, command_id: bytes) -> tuple[str, str]:
    """Return content and canonical tool calls of a sampled text; `name` is the tool format."""
    if name == NONE:
        return text, ""
    content, calls = FORMATS[name].parsed(text)
    head = f"call_{command_id.hex()[:24]}"
    return content, tool_calls_text(
        [ToolCall(f"{head}_{at}", called, given) for at, (called, given) in enumerate(calls)]
    )


def format_of(name: str, tokenizer: Any) -> ToolFormat | None:
    """Return the format of that name, None for `none`.

    Raises Refused for an unknown name, and for a tokenizer that loses the format's marks, as they
    would be missing from every answer.
    """
    if name == NONE:
        return None
    if name not in FORMATS:
        msg = f"tools of format {name!r}; known are {', '.join([NONE, *FORMATS])}"
        raise Refused(msg)
    for mark in FORMATS[name].marks:
        try:
            ids = tokenizer.encode(mark, add_special_tokens=False)
            written = tokenizer.decode(ids, skip_special_tokens=True)
        except Exception as error:  # the Rust tokenizers raise nothing narrower
            msg = f"tools of format {name!r}, but the tokenizer cannot write {mark!r}: {error}"
            raise Refused(msg) from error
        if mark not in written:
            msg = f"tools of format {name!r}, but the tokenizer writes {mark!r} as {written!r}"
            raise Refused(msg)
    return FORMATS[name]


def detect_format(chat_template: str, tokenizer: Any) -> str:
    """Detect the format that a tokenizer's own chat template teaches, of those known here."""
    for name, of in FORMATS.items():
        if of.taught.search(chat_template):
            with suppress(Refused):
                format_of(name, tokenizer)
                return name
    return NONE


def unwritable(name: str, tokenizer: Any) -> str:
    """Return why a tokenizer cannot write a format; empty if it can."""
    try:
        format_of(name, tokenizer)
    except Refused as error:
        return str(error)
    return ""


def no_form(
    kind: str, why_not: Mapping[str, str] = MappingProxyType({}), others: Sequence[str] = ()
) -> WorkFailed:
    """Return the error of a call with tools under a template that declares no format.

    `why_not` maps formats that the template cannot declare to the reason; `others` are those among
    them that a template of kind roles can declare. It can declare all formats not in `why_not`.
    """
    fit = " or ".join(f'"tools": "{name}"' for name in FORMATS if name not in why_not)
    wider = " or ".join(f'"tools": "{name}"' for name in others)
    if fit:
        remedy = f"declare {fit} in the template of its rollcall.json if the policy was taught that"
    elif wider:
        remedy = (
            f"declare a template of kind roles with {wider} in its rollcall.json if the policy was "
            "taught that"
        )
    else:
        remedy = "and can declare none"
    reasons = "; ".join(
        f'"tools": "{name}" cannot stand in it: {why}' for name, why in why_not.items()
    )
    reasons = "" if fit else f" ({reasons})"
    last = "else call it without tools" if fit or wider else "call it without tools"
    msg = (
        f"the policy's template, of kind {kind!r}, has no form for tools; {remedy}{reasons}; {last}"
    )
    return WorkFailed(FailureCode.NOT_RENDERABLE, msg, retriable=False)


def _with_calls_written(of: ToolFormat, message: Message) -> Message:
    if message.role == "tool":
        return replace(message, content=of.result(message.content))
    if not message.tool_calls:
        return message
    calls = map(of.call, tool_calls_of(message.tool_calls))
    content = "\n".join([message.content, *calls] if message.content else calls)
    return replace(message, content=content, tool_calls="")


HERMES = """\
# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>
{tools}
</tools>

For each function call, return a json object with function name and arguments within \
<tool_call></tool_call> XML tags:
<tool_call>
{{"name": <function-name>, "arguments": <args-json-object>}}
</tool_call>"""
OPEN, CLOSE = "<tool_call>", "</tool_call>"
THINK_OPEN, THINK_CLOSE = "<think>", "</think>"
MOST_MISSES = 1000
"""The most openings without a call that are parsed; text after so many is content."""
DECODER = json.JSONDecoder()


def _hermes_definitions(tools: list[Any]) -> str:
    return HERMES.format(tools="\n".join(json.dumps(one, ensure_ascii=False) for one in tools))


def _hermes_call(call: ToolCall) -> str:
    return f'{OPEN}\n{{"name": {json_text(call.name)}, "arguments": {call.arguments}}}\n{CLOSE}'


def _hermes_result(content: str) -> str:
    return f"<tool_response>\n{content}\n</tool_response>"


def _hermes_parsed(text: str) -> tuple[str, Calls]:
    """Parse the blocks that hold a call; the text around them is the content.

    Calls within the policy's thinking are not parsed.
    """
    calls: Calls = []
    around: list[str] = []
    kept = at = misses = 0
    thoughts = deque(_thoughts(text))
    while misses < MOST_MISSES and (at := text.find(OPEN, at)) >= 0:
        while thoughts and thoughts[0][1] <= at:
            thoughts.popleft()
        if thoughts and thoughts[0][0] <= at:
            at = thoughts[0][1]
            continue
        call, end = _hermes_block(text, at + len(OPEN))
        if call is None:
            at += len(OPEN)
            misses += 1
            continue
        calls.append(call)
        around.append(text[kept:at])
        kept = at = end
    if not calls:
        return text, []
    return "".join([*around, text[kept:]]).strip(), calls


def _thoughts(text: str) -> list[tuple[int, int]]:
    """Return the spans of thinking; the prompt may have opened the first, the last may be cut."""
    spans, at = [], 0
    closes = text.find(THINK_CLOSE)
    opens = text.find(THINK_OPEN)
    if closes >= 0 and not 0 <= opens < closes:
        at = closes + len(THINK_CLOSE)
        spans.append((0, at))
    while (opens := text.find(THINK_OPEN, at)) >= 0:
        closes = text.find(THINK_CLOSE, opens)
        at = closes + len(THINK_CLOSE) if closes >= 0 else len(text)
        spans.append((opens, at))
    return spans


def _hermes_block(text: str, start: int) -> tuple[tuple[str, str] | None, int]:
    """Return the call that begins at `start` (None if it is none), and the end of its block."""
    begin = _past_space(text, start)
    try:
        _, end = DECODER.raw_decode(text, begin)
    except (ValueError, RecursionError):
        return None, start
    close = _past_space(text, end)
    value = arguments_of(text[begin:end]) if text.startswith(CLOSE, close) else None
    match value:
        case {"name": str(name), "arguments": dict(given)} if name:
            return (name, json_text(given)), close + len(CLOSE)
    return None, start


def _past_space(text: str, at: int) -> int:
    while at < len(text) and text[at].isspace():
        at += 1
    return at


FORMATS = {
    "hermes": ToolFormat(
        _hermes_definitions,
        _hermes_call,
        _hermes_result,
        _hermes_parsed,
        (OPEN, CLOSE),
        re.compile(r'<tool_call>(?:\\n|\s)*\{\\?"name\\?"'),
    )
}
"""Tool formats by the name that a template declares."""
