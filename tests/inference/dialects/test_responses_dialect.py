"""Responses, as OpenAI's client sends and reads them."""

from dataclasses import replace
from typing import Any

import openai
import orjson
import pytest

from inference.dialects.responses import RESPONSES
from schemas.asks import Choice
from schemas.messages import Message
from schemas.tool_calls import ToolCall, tool_calls_text
from tests.support.dialect_server import ID, DialectServer, reply_to, says

CALLS = (ToolCall("call_1", "bash", '{"command":"ls"}'), ToolCall("call_2", "done", "{}"))
CALLING = Choice("Let me look.", "stop", tool_calls_text(CALLS), 9)
SAID = Choice("Hello é.", "stop", "", 2)
USER: list[Any] = [{"role": "user", "content": "Hello"}]
TOOLS: list[Any] = [{"type": "function", "name": "bash", "parameters": {"type": "object"}}]


def test_a_text_is_read_by_the_client() -> None:
    server = DialectServer(says(SAID))

    got = server.openai().responses.create(
        model="any", input="Hello", instructions="Be brief.", max_output_tokens=16, temperature=0.5
    )

    assert got.output_text == "Hello é."
    assert (got.id, got.created_at, got.model) == (f"resp_{ID}", 1_700_000_000, "policy")
    assert (got.status, got.instructions, got.temperature) == ("completed", "Be brief.", 0.5)
    assert got.usage is not None
    assert (got.usage.input_tokens, got.usage.output_tokens, got.usage.total_tokens) == (7, 2, 9)
    assert server.ask.messages == (Message("system", "Be brief."), Message("user", "Hello"))
    assert (server.ask.max_tokens, server.ask.temperature) == (16, 0.5)


@pytest.mark.parametrize(
    "choice", [SAID, Choice(""), CALLING, Choice("", "stop", tool_calls_text(CALLS))]
)
def test_what_the_client_sends_back_is_what_the_policy_said(choice: Choice) -> None:
    server = DialectServer(says(choice))
    create = server.openai().responses.create
    got = create(model="policy", input=USER, tools=TOOLS)
    items: list[Any] = [item.model_dump(exclude_unset=True) for item in got.output]
    result = {"type": "function_call_output", "call_id": "call_1", "output": "a.txt"}

    create(model="policy", input=[*USER, *items, result], tools=TOOLS)

    assert server.ask.messages[1:] == (
        Message("assistant", choice.text, choice.tool_calls),
        Message("tool", "a.txt", "", "call_1"),
    )


def test_a_response_can_be_gone_on_from_without_its_instructions() -> None:
    server = DialectServer(says(CALLING))
    create = server.openai().responses.create
    first = create(model="policy", input="Hello", instructions="Be brief.", tools=TOOLS)
    result: list[Any] = [{"type": "function_call_output", "call_id": "call_1", "output": "x"}]

    create(model="policy", input=result, previous_response_id=first.id, instructions="Be kind.")

    assert server.ask.messages == (
        Message("system", "Be kind."),
        Message("user", "Hello"),
        Message("assistant", CALLING.text, CALLING.tool_calls),
        Message("tool", "x", "", "call_1"),
    )


def test_a_response_of_another_session_is_refused() -> None:
    with pytest.raises(openai.BadRequestError, match="no response of this session") as refused:
        DialectServer(says(SAID)).openai().responses.create(
            model="p", input="x", previous_response_id="resp_other"
        )

    assert refused.value.param == "previous_response_id"


def test_a_response_that_is_not_to_be_stored_is_not() -> None:
    server = DialectServer(says(SAID))
    server.openai().responses.create(model="p", input="x", store=False)

    assert server.earlier == {}


def test_what_is_kept_of_a_conversation_is_kept_once() -> None:
    server = DialectServer(lambda ask: replace(reply_to(ask, SAID), id=ask.d))
    items: list[Any] = []
    for turn in range(20):
        items.append({"role": "user", "content": f"{turn} " * 1000})
        got = server.openai().responses.create(model="p", input=items)
        items += [item.model_dump(exclude_unset=True) for item in got.output]

    held = {id(message) for said in server.earlier.values() for message in said}
    assert len(server.earlier) == 20
    assert len(held) <= 20 * 3


@pytest.mark.parametrize("choice", [SAID, CALLING, Choice("", "stop", tool_calls_text(CALLS))])
def test_a_stream_adds_up_to_the_response(choice: Choice) -> None:
    server = DialectServer(says(choice))
    whole = server.openai().responses.create(model="p", input="x", tools=TOOLS)

    with server.openai().responses.stream(model="p", input="x", tools=TOOLS) as stream:
        events = list(stream)
        got = stream.get_final_response()

    numbers = [event.sequence_number for event in events]
    assert numbers == sorted(set(numbers))
    assert [event.type for event in (events[0], events[-1])] == [
        "response.created",
        "response.completed",
    ]
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(deltas) == choice.text
    assert [
        item.model_dump(exclude_unset=True, exclude={"parsed_arguments"})
        for item in got.output
        if item.type == "function_call"
    ] == [
        item.model_dump(exclude_unset=True) for item in whole.output if item.type == "function_call"
    ]
    assert got.output_text == whole.output_text
    assert got.usage == whole.usage


def test_a_cut_response_is_incomplete() -> None:
    create = DialectServer(says(Choice("Hel", "length", "", 3))).openai().responses.create

    got = create(model="p", input="x")
    events = list(create(model="p", input="x", stream=True))

    assert got.status == "incomplete"
    assert got.incomplete_details is not None
    assert got.incomplete_details.reason == "max_output_tokens"
    assert events[-1].type == "response.incomplete"
    assert events[-1].response.output_text == "Hel"


def turns(*items: Any) -> tuple[Message, ...]:
    body = orjson.dumps({"input": items})
    messages: tuple[Message, ...] = RESPONSES.read(body, ["policy"], {}).ask.messages
    return messages


def called(name: str) -> dict[str, str]:
    return {"type": "function_call", "call_id": name, "name": name, "arguments": "{}"}


def answered(name: str) -> dict[str, str]:
    return {"type": "function_call_output", "call_id": name, "output": "ok"}


def test_calls_belong_to_the_turn_that_they_follow() -> None:
    said = {"type": "message", "role": "assistant", "content": "I call."}
    both = tool_calls_text([ToolCall("a", "a", "{}"), ToolCall("b", "b", "{}")])
    one = tool_calls_text([ToolCall("c", "c", "{}")])

    found = turns(said, called("a"), called("b"), answered("a"), answered("b"), called("c"), said)

    assert [(m.role, m.content, m.tool_calls) for m in found] == [
        ("assistant", "I call.", both),
        ("tool", "ok", ""),
        ("tool", "ok", ""),
        ("assistant", "", one),
        ("assistant", "I call.", ""),
    ]


@pytest.mark.parametrize(
    ("item", "found"),
    [
        ({"role": "developer", "content": "x"}, (Message("system", "x"),)),
        ({"role": "user", "content": "x", "type": None}, (Message("user", "x"),)),
        (
            {"role": "user", "content": [{"type": "input_text", "text": t} for t in "ab"]},
            (Message("user", "ab"),),
        ),
        ({"type": "reasoning", "id": "r", "summary": [], "encrypted_content": "x"}, ()),
        (
            answered("a") | {"output": [{"type": "input_text", "text": "x"}]},
            (Message("tool", "x", "", "a"),),
        ),
    ],
)
def test_items_have_one_form(item: dict[str, Any], found: tuple[Message, ...]) -> None:
    assert turns({"role": "user", "content": "x"}, item)[1:] == found


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"input": []}, "input must hold a message, found none"),
        ({"input": 5}, "input must be a text or must be a list, found 5"),
        ({"input": [{"type": "item_reference"}]}, "input[0].type must be one of 'message', 'func"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
            "input[0].content[0].type must be 'input_text' or 'output_text', found 'input_image'",
        ),
        (
            {"input": [called("a") | {"call_id": None}]},
            "input[0].call_id must be a text, found null",
        ),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type must be 'function'"),
        ({"tool_choice": {"type": "function", "name": "x"}}, "tool_choice names 'x'"),
        ({"max_output_tokens": 1.5}, "max_output_tokens must be an integer, found 1.5"),
    ],
)  # fmt: skip
def test_what_cannot_be_taken_is_refused_by_its_field(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        DialectServer(says(SAID)).openai().responses.create(model="p", input="x", extra_body=fields)

    assert words in refused.value.message
    assert refused.value.param == words.split()[0]
