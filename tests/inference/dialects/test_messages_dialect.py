"""Messages, as Anthropic's client sends and reads them."""

from dataclasses import replace
from typing import Any

import anthropic
import orjson
import pytest

from rollcall.inference.dialects.anthropic_messages import MESSAGES
from rollcall.schemas.agent_requests import Choice
from rollcall.schemas.messages import Message
from rollcall.schemas.tool_calls import ToolCall, tool_calls_text
from tests.support.dialect_server import ID, DialectServer, says

CALLS = (ToolCall("call_1", "bash", '{"command":"ls"}'), ToolCall("call_2", "done", "{}"))
CALLING = Choice("Let me look.", "stop", tool_calls_text(CALLS), 9)
SAID = Choice("Hello é.", "stop", "", 2)
USER: list[Any] = [{"role": "user", "content": "Hello"}]
TOOLS: list[Any] = [{"name": "bash", "description": "Run", "input_schema": {"type": "object"}}]


def test_the_client_reads_a_text_answer() -> None:
    server = DialectServer(says(SAID))

    got = server.anthropic().messages.create(
        model="any",
        max_tokens=50,
        system="Be brief.",
        messages=USER,
        stop_sequences=["x"],
        extra_body={"temperature": 0.5, "top_p": 0.9},
    )

    assert [block.model_dump()["text"] for block in got.content] == ["Hello é."]
    assert (got.id, got.model, got.stop_reason) == (f"msg_{ID}", "policy", "end_turn")
    assert (got.usage.input_tokens, got.usage.output_tokens) == (7, 2)
    assert server.request.messages == (Message("system", "Be brief."), Message("user", "Hello"))
    assert (server.request.max_tokens, server.request.stop) == (50, ("x",))
    assert (server.request.temperature, server.request.top_p) == (0.5, 0.9)


@pytest.mark.parametrize(
    "choice", [SAID, Choice(""), CALLING, Choice("", "stop", tool_calls_text(CALLS))]
)
def test_the_client_sends_back_the_policys_answer_unchanged(choice: Choice) -> None:
    server = DialectServer(says(choice))
    create = server.anthropic().messages.create
    got = create(model="policy", max_tokens=50, messages=USER, tools=TOOLS)
    said: Any = [block.model_dump(exclude_unset=True) for block in got.content]
    results: Any = [
        {"type": "tool_result", "tool_use_id": "call_1", "content": "a.txt", "is_error": True},
        {
            "type": "tool_result",
            "tool_use_id": "call_2",
            "content": [{"type": "text", "text": "ok"}],
        },
        {"type": "text", "text": "Go on."},
    ]
    results = results if choice.tool_calls else results[2:]
    echo: Any = [{"role": "assistant", "content": said}, {"role": "user", "content": results}]

    create(model="policy", max_tokens=50, messages=[*USER, *echo], tools=TOOLS)

    assert got.stop_reason == ("tool_use" if choice.tool_calls else "end_turn")
    told = Message("tool", "Error: a.txt", "", "call_1"), Message("tool", "ok", "", "call_2")
    assert server.request.messages[1:] == (
        Message("assistant", choice.text, choice.tool_calls),
        *(told if choice.tool_calls else ()),
        Message("user", "Go on."),
    )
    function = {"name": "bash", "description": "Run", "parameters": {"type": "object"}}
    assert orjson.loads(server.request.tools) == [{"type": "function", "function": function}]


@pytest.mark.parametrize("choice", [SAID, CALLING, Choice("Hel", "length", "", 3)])
def test_a_stream_equals_the_whole_message(choice: Choice) -> None:
    server = DialectServer(says(choice))
    asked: Any = {"model": "p", "max_tokens": 50, "messages": USER, "tools": TOOLS}
    whole = server.anthropic().messages.create(**asked)

    with server.anthropic().messages.stream(**asked) as stream:
        got = stream.get_final_message()

    strip: Any = {"exclude_unset": True, "exclude": {"content": {"__all__": {"parsed_output"}}}}
    assert got.model_dump(**strip) == whole.model_dump(**strip) | {"stop_details": None}


@pytest.mark.parametrize(
    ("choice", "found"),
    [
        (Choice("one ", stopped_by="two"), ("stop_sequence", "two")),
        (Choice("one ", stopped_by="the rollout's own"), ("end_turn", None)),
        (Choice("one ", "length", stopped_by="two"), ("max_tokens", None)),
        (replace(CALLING, stopped_by="two"), ("tool_use", None)),
    ],
)
def test_the_stop_string_that_ended_an_answer_is_reported(
    choice: Choice, found: tuple[str, str | None]
) -> None:
    asked: Any = {"model": "p", "max_tokens": 50, "messages": USER, "stop_sequences": ["x", "two"]}
    client = DialectServer(says(choice)).anthropic()

    got = client.messages.create(**asked)
    with client.messages.stream(**asked) as stream:
        streamed = stream.get_final_message()

    assert (got.stop_reason, got.stop_sequence) == found
    assert (streamed.stop_reason, streamed.stop_sequence) == found


def test_arguments_that_are_not_an_object_are_returned_as_text() -> None:
    choice = Choice("", "stop", tool_calls_text([ToolCall("c", "bash", "ls -l")]))

    got = (
        DialectServer(says(choice))
        .anthropic()
        .messages.create(model="p", max_tokens=5, messages=USER)
    )

    assert [block.model_dump(include={"type", "text"}) for block in got.content] == [
        {"type": "text", "text": "ls -l"}
    ]


def test_count_tokens_counts_without_sampling() -> None:
    server = DialectServer(says(Choice("")))

    got = server.anthropic().messages.count_tokens(model="p", messages=USER, tools=TOOLS)

    assert got.input_tokens == 7
    assert server.request.max_tokens == 0


def request(**fields: Any) -> Any:
    body = orjson.dumps({"max_tokens": 5, "messages": USER} | fields)
    return MESSAGES.read(body, ["policy"], {}).request


@pytest.mark.parametrize(
    ("content", "found"),
    [
        ([{"type": "text", "text": t} for t in "ab"], [Message("user", "ab")]),
        ([], [Message("user")]),
    ],
)
def test_content_blocks_are_normalised(content: Any, found: list[Message]) -> None:
    assert list(request(messages=[{"role": "user", "content": content}]).messages) == found


def test_system_messages_may_occur_in_the_middle_of_a_conversation() -> None:
    later: Any = {"role": "system", "content": [{"type": "text", "text": "Be kind."}]}

    said = request(system="Be brief.", messages=[*USER, later, *USER]).messages

    assert [(m.role, m.content) for m in said] == [
        ("system", "Be brief."),
        ("user", "Hello"),
        ("system", "Be kind."),
        ("user", "Hello"),
    ]


def test_thinking_blocks_are_ignored() -> None:
    blocks = [
        {"type": "thinking", "thinking": "x", "signature": "y"},
        {"type": "text", "text": "a"},
    ]

    said = request(messages=[*USER, {"role": "assistant", "content": blocks}]).messages

    assert said[1] == Message("assistant", "a")


@pytest.mark.parametrize(
    ("choice", "found"),
    [
        (None, "auto"),
        ({"type": "any"}, "required"),
        ({"type": "none"}, "none"),
        ({"type": "auto", "disable_parallel_tool_use": True}, "auto"),
        ({"type": "tool", "name": "bash"}, "function:bash"),
    ],
)
def test_tool_choice_is_normalised(choice: Any, found: str) -> None:
    assert request(tools=TOOLS, tool_choice=choice).tool_choice == found


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"max_tokens": 0}, "max_tokens must be greater than or equal to 1, found 0"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role must be one of"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image"}]}]},
            "messages[0].content[0].type must be one of 'text', 'tool_result', found 'image'",
        ),
        ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, "tools[0]"),
        ({"tool_choice": {"type": "tool", "name": "x"}}, "tool_choice names 'x'"),
        ({"system": 5}, "system must be a text or must be a list, found 5"),
    ],
)
def test_an_invalid_field_is_refused_by_name(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(anthropic.BadRequestError) as refused:
        DialectServer(says(SAID)).anthropic().messages.create(
            model="p", max_tokens=5, messages=USER, extra_body=fields
        )

    assert words in refused.value.message


def test_a_body_without_a_token_limit_is_refused() -> None:
    with pytest.raises(anthropic.BadRequestError, match="max_tokens is missing"):
        DialectServer(says(SAID)).anthropic().post(
            "/v1/messages", body={"messages": USER}, cast_to=object
        )
