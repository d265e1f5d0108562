"""Responses, as OpenAI's client sends and reads them."""

from dataclasses import replace
from typing import Any

import openai
import orjson
import pytest

from rollcall.inference.dialects.responses import RESPONSES
from rollcall.schemas.agent_requests import Choice
from rollcall.schemas.messages import Message
from rollcall.schemas.tool_calls import ToolCall, tool_calls_of, tool_calls_text
from tests.support.dialect_server import ID, DialectServer, reply_to, says

CALLS = (ToolCall("call_1", "bash", '{"command":"ls"}'), ToolCall("call_2", "done", "{}"))
CALLING = Choice("Let me look.", "stop", tool_calls_text(CALLS), 9)
SAID = Choice("Hello é.", "stop", "", 2)
USER: list[Any] = [{"role": "user", "content": "Hello"}]
TOOLS: list[Any] = [{"type": "function", "name": "bash", "parameters": {"type": "object"}}]


def test_the_client_reads_a_text_answer() -> None:
    server = DialectServer(says(SAID))

    got = server.openai().responses.create(
        model="any", input="Hello", instructions="Be brief.", max_output_tokens=16, temperature=0.5
    )

    assert got.output_text == "Hello é."
    assert (got.id, got.created_at, got.model) == (f"resp_{ID}", 1_700_000_000, "policy")
    assert (got.status, got.instructions, got.temperature) == ("completed", "Be brief.", 0.5)
    assert got.usage is not None
    assert (got.usage.input_tokens, got.usage.output_tokens, got.usage.total_tokens) == (7, 2, 9)
    assert server.request.messages == (Message("system", "Be brief."), Message("user", "Hello"))
    assert (server.request.max_tokens, server.request.temperature) == (16, 0.5)


@pytest.mark.parametrize(
    "choice", [SAID, Choice(""), CALLING, Choice("", "stop", tool_calls_text(CALLS))]
)
def test_the_client_sends_back_the_policys_answer_unchanged(choice: Choice) -> None:
    server = DialectServer(says(choice))
    create = server.openai().responses.create
    got = create(model="policy", input=USER, tools=TOOLS)
    items: list[Any] = [item.model_dump(exclude_unset=True) for item in got.output]
    results = [answered(call.id) for call in tool_calls_of(choice.tool_calls)]

    create(model="policy", input=[*USER, *items, *results], tools=TOOLS)

    assert server.request.messages[1:] == (
        Message("assistant", choice.text, choice.tool_calls),
        *(Message("tool", "ok", "", result["call_id"]) for result in results),
    )


def test_a_response_can_be_continued_without_its_instructions() -> None:
    server = DialectServer(says(CALLING))
    create = server.openai().responses.create
    first = create(model="policy", input="Hello", instructions="Be brief.", tools=TOOLS)
    results: list[Any] = [answered("call_2"), answered("call_1")]

    create(model="policy", input=results, previous_response_id=first.id, instructions="Be kind.")

    assert server.request.messages == (
        Message("system", "Be kind."),
        Message("user", "Hello"),
        Message("assistant", CALLING.text, CALLING.tool_calls),
        Message("tool", "ok", "", "call_1"),
        Message("tool", "ok", "", "call_2"),
    )


def test_a_response_of_another_session_is_refused() -> None:
    words = "Previous response with id 'resp_other' not found."
    with pytest.raises(openai.BadRequestError, match=words) as refused:
        DialectServer(says(SAID)).openai().responses.create(
            model="p", input="x", previous_response_id="resp_other"
        )

    assert refused.value.param == "previous_response_id"
    assert refused.value.code == "previous_response_not_found"


def test_a_response_with_store_false_is_not_stored() -> None:
    server = DialectServer(says(SAID))
    server.openai().responses.create(model="p", input="x", store=False)

    assert server.earlier == {}


@pytest.mark.parametrize("choice", [SAID, CALLING, Choice("", "stop", tool_calls_text(CALLS))])
def test_an_earlier_item_may_be_sent_back_by_reference(choice: Choice) -> None:
    server = DialectServer(says(choice))
    create = server.openai().responses.create
    first = create(model="policy", input=USER, tools=TOOLS)
    items: list[Any] = [{"type": "item_reference", "id": item.id} for item in first.output]
    results = [answered(call.id) for call in tool_calls_of(choice.tool_calls)]

    create(model="policy", input=[*USER, *items, *results], tools=TOOLS)

    assert server.request.messages[1] == Message("assistant", choice.text, choice.tool_calls)


@pytest.mark.parametrize(
    "name", ["rs_1", "msg_1", f"fc_{ID}_9", f"fc_{ID}_\u0663", f"fc_{ID}_" + "9" * 5000, "", "_"]
)
def test_a_reference_to_an_unknown_item_is_not_found(name: str) -> None:
    server = DialectServer(says(CALLING))
    create = server.openai().responses.create
    create(model="policy", input=USER)

    with pytest.raises(openai.NotFoundError, match=r"Item with id '.*' not found\. Items"):
        create(model="policy", input=[*USER, {"type": "item_reference", "id": name}])


def test_reasoning_options_are_echoed_and_reasoning_items_ignored() -> None:
    server = DialectServer(says(CALLING))
    create = server.openai().responses.create
    wished: Any = {
        "reasoning": {"effort": "low", "summary": "auto"},
        "store": False,
        "include": ["reasoning.encrypted_content"],
        "metadata": {"a": "b"},
    }
    got = create(model="policy", input=USER, tools=TOOLS, parallel_tool_calls=False, **wished)
    reasoning: Any = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "x"}
    items: list[Any] = [item.model_dump(exclude_unset=True) for item in got.output]
    between = [each for item in items for each in (reasoning, item)]

    create(model="policy", input=[*USER, *between], tools=TOOLS, **wished)

    assert got.reasoning is not None
    assert (got.reasoning.effort, got.reasoning.summary) == ("low", "auto")
    assert (got.metadata, got.parallel_tool_calls) == ({"a": "b"}, False)
    assert server.request.messages[1:] == (Message("assistant", CALLING.text, CALLING.tool_calls),)
    assert server.earlier == {}


@pytest.mark.parametrize(
    "fields", [{"conversation": "conv_1"}, {"conversation": {"id": "x"}}, {"prompt": {"id": "p"}}]
)
def test_references_to_state_stored_at_the_vendor_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(openai.BadRequestError, match="Unsupported parameter") as refused:
        DialectServer(says(SAID)).openai().responses.create(model="p", input="x", extra_body=fields)

    assert refused.value.code == "unsupported_parameter"
    assert [refused.value.param] == list(fields)


@pytest.mark.parametrize("alternatives", [0, 1])
def test_logprobs_are_returned_if_included(alternatives: int) -> None:
    choice = Choice("a b", "stop", "", 2, (17, 4), (-0.5, -1.25))
    asked: Any = {
        "model": "p",
        "input": "x",
        "top_logprobs": alternatives,
        "include": ["message.output_text.logprobs"],
    }
    server = DialectServer(says(choice))

    got = server.openai().responses.create(**asked)
    with server.openai().responses.stream(**asked) as stream:
        streamed = stream.get_final_response()

    for output in (got.output, streamed.output):
        told: Any = output[0].content[0].logprobs  # type: ignore[union-attr, index]
        assert [(one.token, one.logprob) for one in told] == [
            ("token_id:17", -0.5),
            ("token_id:4", -1.25),
        ]
        assert [len(one.top_logprobs) for one in told] == [alternatives] * 2
    assert server.request.logprobs


def test_a_stored_conversation_shares_its_messages() -> None:
    server = DialectServer(lambda request: replace(reply_to(request, SAID), id=request.d))
    items: list[Any] = []
    for turn in range(20):
        items.append({"role": "user", "content": f"{turn} " * 1000})
        got = server.openai().responses.create(model="p", input=items)
        items += [item.model_dump(exclude_unset=True) for item in got.output]

    held = {id(message) for said in server.earlier.values() for message in said}
    assert len(server.earlier) == 20
    assert len(held) <= 20 * 3


@pytest.mark.parametrize("choice", [SAID, CALLING, Choice("", "stop", tool_calls_text(CALLS))])
def test_a_stream_equals_the_whole_response(choice: Choice) -> None:
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


def test_a_truncated_response_is_incomplete() -> None:
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
    messages: tuple[Message, ...] = RESPONSES.read(body, ["policy"], {}).request.messages
    return messages


def called(name: str) -> dict[str, str]:
    return {"type": "function_call", "call_id": name, "name": name, "arguments": "{}"}


def answered(name: str) -> dict[str, str]:
    return {"type": "function_call_output", "call_id": name, "output": "ok"}


def test_tool_calls_belong_to_the_turn_before_them() -> None:
    said = {"type": "message", "role": "assistant", "content": "I call."}
    both = tool_calls_text([ToolCall("a", "a", "{}"), ToolCall("b", "b", "{}")])
    one = tool_calls_text([ToolCall("c", "c", "{}")])

    parts = answered("a") | {"output": [{"type": "input_text", "text": "ok"}]}

    found = turns(said, called("a"), called("b"), answered("b"), parts, called("c"), said)

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
    ],
)
def test_input_items_are_normalised(item: dict[str, Any], found: tuple[Message, ...]) -> None:
    assert turns({"role": "user", "content": "x"}, item)[1:] == found


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"input": []}, "input must hold a message, found none"),
        ({"input": 5}, "input must be a text or must be a list, found 5"),
        ({"input": [{"type": "web_search_call"}]}, "input[0].type must be one of 'message', 'func"),
        ({"input": [{"type": "item_reference"}]}, "input[0].id is missing"),
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
)
def test_an_invalid_field_is_refused_by_name(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        DialectServer(says(SAID)).openai().responses.create(model="p", input="x", extra_body=fields)

    assert words in refused.value.message
    assert refused.value.param == words.split()[0]
