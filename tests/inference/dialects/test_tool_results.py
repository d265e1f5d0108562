"""In every dialect, a tool result is paired with its call, or refused by its place."""

import json
from collections import Counter
from dataclasses import dataclass
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollcall.inference.dialects.dialect import Declined
from rollcall.inference.dialects.routes import ROUTES
from rollcall.schemas.messages import Message
from rollcall.schemas.tool_calls import ToolCall, tool_calls_of, tool_calls_text
from tests.support.avro_messages import FEW
from tests.support.tiers import examples

CHAT, RESPONSES, MESSAGES, COUNT = ROUTES
GONE_ON = f"{RESPONSES}, gone on from"
PATHS = pytest.mark.parametrize("path", [*ROUTES, GONE_ON])
IDS = st.sampled_from(["a", "b", "c", "", "call_1"])
HI = {"role": "user", "content": "Hi"}


@dataclass(frozen=True)
class Turn:
    """An answer with its calls, and what a client sends after it: a result's id, or None: text."""

    calls: tuple[str, ...]
    sent: tuple[str | None, ...]


ANY = st.builds(
    Turn, st.lists(IDS, max_size=3).map(tuple), st.lists(IDS | st.none(), max_size=4).map(tuple)
)
ANSWERED = st.lists(IDS, max_size=3, unique=True).flatmap(
    lambda calls: st.permutations([*calls, None]).map(lambda sent: Turn(tuple(calls), tuple(sent)))
)
TURNS = st.lists(ANY | ANSWERED | ANSWERED, min_size=1, max_size=3)


def result_of(name: str, number: int) -> str:
    """The text of a result, by which it is known again."""
    return f"result {number} of {name!r}"


def body_of(path: str, turns: list[Turn]) -> tuple[bytes, dict[str, Any]]:
    """The body of a path, and what its session holds."""
    said = [each for turn in turns for each in written(path, turn)]
    key = "input" if path in (RESPONSES, GONE_ON) else "messages"
    body: dict[str, Any] = {key: [HI, *said], "max_tokens": 5}
    if path != GONE_ON:
        return json.dumps(body).encode(), {}
    first = turns[0]
    calls = tool_calls_text([ToolCall(name, name, "{}") for name in first.calls])
    body |= {"input": said[1 + len(first.calls) :], "previous_response_id": "resp_x"}
    return json.dumps(body).encode(), {
        "resp_x": (Message("user", "Hi"), Message("assistant", "I do.", calls))
    }


def written(path: str, turn: Turn) -> list[dict[str, Any]]:
    """A turn and what comes after it, as the path's clients write it."""
    numbered = list(enumerate(turn.sent))
    if path == CHAT:
        calls = [
            {"id": name, "type": "function", "function": {"name": name, "arguments": "{}"}}
            for name in turn.calls
        ]
        return [
            {"role": "assistant", "content": "I do.", "tool_calls": calls},
            *(
                {"role": "user", "content": "text"}
                if name is None
                else {"role": "tool", "tool_call_id": name, "content": result_of(name, at)}
                for at, name in numbered
            ),
        ]
    if path in (RESPONSES, GONE_ON):
        return [
            {"role": "assistant", "content": "I do."},
            *(
                {"type": "function_call", "call_id": name, "name": name, "arguments": "{}"}
                for name in turn.calls
            ),
            *(
                {"role": "user", "content": "text"}
                if name is None
                else {
                    "type": "function_call_output",
                    "call_id": name,
                    "output": result_of(name, at),
                }
                for at, name in numbered
            ),
        ]
    uses = [{"type": "tool_use", "id": name, "name": name, "input": {}} for name in turn.calls]
    blocks = [
        {"type": "text", "text": "text"}
        if name is None
        else {"type": "tool_result", "tool_use_id": name, "content": result_of(name, at)}
        for at, name in numbered
    ]
    said = {"role": "assistant", "content": [{"type": "text", "text": "I do."}, *uses]}
    return [said, {"role": "user", "content": blocks}] if blocks else [said]


def one_to_one(turns: list[Turn]) -> bool:
    """Whether each result has one call, and each call of an answered turn one result."""
    groups: list[Turn] = []
    for turn in turns:  # turns with nothing between them are answered together
        if groups and not groups[-1].sent:
            groups[-1] = Turn(groups[-1].calls + turn.calls, turn.sent)
        else:
            groups.append(turn)
    results = [
        (Counter(group.calls), Counter(n for n in group.sent if n is not None)) for group in groups
    ]
    return all(not sent or (calls == sent and max(calls.values()) == 1) for calls, sent in results)


def told_pairs(messages: tuple[Message, ...]) -> list[tuple[str, str]]:
    """Calls and results as a template that writes no ids pairs them: in their order."""
    pairs: list[tuple[str, str]] = []
    calls: list[str] = []
    results: list[str] = []
    for message in (*messages, Message("assistant")):
        if message.role == "tool":
            results.append(message.content)
            continue
        if results:
            pairs += zip(calls, results, strict=True)
            calls, results = [], []
        if message.role == "assistant":
            calls += [call.id for call in tool_calls_of(message.tool_calls)]
        else:
            calls = []
    return pairs


@PATHS
@given(turns=TURNS)
@settings(FEW, max_examples=examples(150))
def test_a_tool_result_is_paired_with_its_call_or_refused(path: str, turns: list[Turn]) -> None:
    body, held = body_of(path, turns)
    dialect = ROUTES[path.partition(",")[0]]
    sent = [
        result_of(name, at)
        for turn in turns
        for at, name in enumerate(turn.sent)
        if name is not None
    ]

    if not one_to_one(turns):
        with pytest.raises(Declined) as refused:
            dialect.read(body, ["policy"], held)
        check_refusal(path, refused.value)
        return
    pairs = told_pairs(dialect.read(body, ["policy"], held).request.messages)
    assert all(result.endswith(f" of {call!r}") for call, result in pairs)
    assert sorted(result for _, result in pairs) == sorted(sent)


def check_refusal(path: str, declined: Declined) -> None:
    """It names the field, by its place in the body, and what to send."""
    words, place = str(declined), declined.param or ""
    error = orjson.loads(ROUTES[path.partition(",")[0]].error(declined))["error"]

    assert (declined.status, error["type"], error["message"]) == (
        400,
        "invalid_request_error",
        words,
    )
    assert place.partition("[")[0] in ("messages", "input", "previous_response_id")
    assert words.startswith(f"{place} ")
    assert "; send" in words or "; give" in words


@PATHS
@given(names=st.permutations(["a", "b", "c"]), text=st.integers(0, 3))
@FEW
def test_results_in_any_order_give_the_same_ask(path: str, names: list[str], text: int) -> None:
    orders = [[*names[:text], None, *names[text:]], ["a", "b", "c", None]]

    first, second = (
        ROUTES[path.partition(",")[0]].read(body, ["policy"], held).request.messages
        for order in orders
        for body, held in [body_of(path, [Turn(("a", "b", "c"), tuple(order))])]
    )

    assert [(m.role, m.tool_call_id) for m in first] == [(m.role, m.tool_call_id) for m in second]
    assert [m.tool_call_id for m in first if m.role == "tool"] == ["a", "b", "c"]


@pytest.mark.parametrize("path", [MESSAGES, COUNT])
@pytest.mark.parametrize("content", [None, "", "gone", [{"type": "text", "text": "gone"}]])
@pytest.mark.parametrize("is_error", [True, False, None])
def test_an_error_result_is_marked_as_an_error(
    path: str, content: Any, is_error: bool | None
) -> None:
    use = {"type": "tool_use", "id": "a", "name": "f", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "a", "content": content, "is_error": is_error}
    said = [HI, {"role": "assistant", "content": [use]}, {"role": "user", "content": [result]}]
    body = json.dumps({"max_tokens": 5, "messages": said}).encode()

    told = ROUTES[path].read(body, ["policy"], {}).request.messages[-1].content

    assert told == ("Error: " if is_error else "") + ("gone" if content else "")


def test_a_tool_result_gets_the_name_of_its_call() -> None:
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    for given_name, wanted in (("g", "f"), (None, "")):
        said = [
            HI,
            {"role": "assistant", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "a", "content": "x", "name": given_name},
        ]

        request = ROUTES[CHAT].read(json.dumps({"messages": said}).encode(), ["policy"], {}).request

        assert request.messages[-1].name == wanted
