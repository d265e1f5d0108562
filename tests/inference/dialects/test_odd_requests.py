"""Unusual requests get an answer, or a refusal that names the field."""

import json
from typing import Any

import orjson
import pytest

from rollcall.inference.dialects.dialect import NAME_CHARS
from rollcall.inference.dialects.routes import ROUTES, HttpAnswer
from rollcall.schemas.agent_requests import AgentRequest, Choice
from rollcall.schemas.messages import Message
from rollcall.schemas.tool_calls import ToolCall, tool_calls_text
from tests.support.dialect_server import DialectServer, Replies, reply_to, says

HI = {"role": "user", "content": "Hi"}
CHAT, RESPONSES, MESSAGES, COUNT = ROUTES
PATHS = pytest.mark.parametrize("path", ROUTES)
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
RESULT = {"role": "tool", "tool_call_id": "c", "content": "x"}
USE = {"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "f", "input": {}}]}
USED = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": "x"}]}
CALLED = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
OUTPUT = {"type": "function_call_output", "call_id": "c", "output": "x"}
IMAGES: dict[str, Any] = {
    CHAT: {"type": "image_url", "image_url": {"url": "data:,"}},
    RESPONSES: {"type": "input_image", "image_url": "data:,"},
    MESSAGES: {"type": "image", "source": {"type": "base64", "data": ""}},
}
IMAGES[COUNT] = IMAGES[MESSAGES]
AUDIO = {"type": "input_audio", "input_audio": {"data": "", "format": "wav"}}


def every(request: AgentRequest) -> Any:
    return reply_to(request, *[Choice("Hello.", "stop", "", 2, (1, 2), (-1.0, -1.0))] * request.n)


def asked(path: str, **fields: Any) -> dict[str, Any]:
    told = {"input": [HI]} if path == RESPONSES else {"messages": [HI], "max_tokens": 5}
    return told | fields


def sent(path: str, body: bytes, replies: Replies = every) -> tuple[HttpAnswer, DialectServer]:
    server = DialectServer(replies)
    return server.answer(path, body), server


def refusal(path: str, body: bytes) -> dict[str, Any]:
    """The error in the form of the path's vendor."""
    found, server = sent(path, body)
    assert (found.status, server.requests) == (400, [])
    value: dict[str, Any] = orjson.loads(found.body)
    vendor = (
        {"type", "message"} if path in (MESSAGES, COUNT) else {"type", "message", "param", "code"}
    )
    assert value["error"].keys() == vendor
    assert value["error"]["type"] == "invalid_request_error"
    return dict(value["error"])


def accepted(path: str, value: Any) -> AgentRequest:
    body = value if isinstance(value, bytes) else json.dumps(value).encode()
    found, server = sent(path, body)
    assert found.status == 200, found.body
    return server.request


@PATHS
@pytest.mark.parametrize(
    "content", [b'"\\ud800"', b'"\\udfff\\ud800"', b'"\xed\xa0\x80"', b'"a\xff"'], ids=range(4)
)
def test_lone_surrogates_and_invalid_bytes_are_replaced(path: str, content: bytes) -> None:
    body = json.dumps(asked(path)).encode().replace(b'"Hi"', content)

    found, _ = sent(path, body)

    assert found.status == 200, found.body


@PATHS
def test_a_million_nested_lists_are_refused(path: str) -> None:
    for deep in (b"[" * 10**6, b"[" * 10**6 + b"]" * 10**6, b'{"a":' * 10**6):
        body = b'{"messages": ' + deep + b', "input": "x"}'
        said = refusal(path, body)["message"]
        assert said.startswith(("the body is nested more than", "the body has more than"))


@PATHS
@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_non_finite_numbers_are_refused(path: str, number: str) -> None:
    for name in ("temperature", "top_p") if path != COUNT else ():
        body = json.dumps(asked(path))[:-1] + f', "{name}": {number}}}'
        assert name in refusal(path, body.encode())["message"]
    function = {"name": "f", "parameters": {"most": "HERE"}}
    schema = {"name": "f", "input_schema": {"most": "HERE"}}
    chat, flat = {"type": "function", "function": function}, {"type": "function", **function}
    tool = {CHAT: chat, RESPONSES: flat}.get(path, schema)
    tools = json.dumps(asked(path, tools=[tool]))
    assert "tools" in refusal(path, tools.replace('"HERE"', number).encode())["message"]


def test_the_last_of_two_equal_keys_counts() -> None:
    body = b'{"messages": 5, "n": 9, "messages": [{"role": "user", "content": "Hi"}], "n": 2}'

    request = accepted(CHAT, body)

    assert (request.messages, request.n) == ((Message("user", "Hi"),), 2)


@PATHS
@pytest.mark.parametrize("number", [2**31, 2**63, 10**400, -1, 0, 1.5, "5", True, [], {}])
def test_an_invalid_token_limit_is_refused(path: str, number: Any) -> None:
    if path == COUNT:
        return
    name = "max_output_tokens" if path == RESPONSES else "max_tokens"

    assert refusal(path, json.dumps(asked(path, **{name: number})).encode())["message"].startswith(
        f"{name} must be "
    )


def test_a_huge_token_limit_is_passed_on_unchanged() -> None:
    assert accepted(CHAT, asked(CHAT, max_tokens=10**9)).max_tokens == 10**9


@pytest.mark.parametrize("number", [0, -1, 129, 2**200, "2", 1.0])
def test_an_invalid_number_of_answers_is_refused(number: Any) -> None:
    assert refusal(CHAT, json.dumps(asked(CHAT, n=number)).encode())["param"] == "n"


@pytest.mark.parametrize(
    ("options", "status"),
    [
        (None, 200),
        ({}, 200),
        ({"include_usage": None}, 200),
        ({"x": [1]}, 200),
        ([], 400),
        (1, 400),
        ("yes", 400),
        ({"include_usage": "yes"}, 400),
        ({"include_usage": 1}, 400),
    ],
)
def test_stream_options_are_accepted_or_refused(options: Any, status: int) -> None:
    for stream in (True, False):
        body = json.dumps(asked(CHAT, stream=stream, stream_options=options)).encode()

        assert sent(CHAT, body)[0].status == status


def test_a_thousand_stop_strings_are_passed_on_unchanged() -> None:
    stops = [f"stop {n}" for n in range(1000)]

    assert accepted(CHAT, asked(CHAT, stop=stops)).stop == tuple(stops)
    assert accepted(MESSAGES, asked(MESSAGES, stop_sequences=stops)).stop == tuple(stops)


@PATHS
@pytest.mark.parametrize("part", ["image", "audio"])
def test_a_part_that_is_not_text_is_refused_by_its_type(path: str, part: str) -> None:
    found = IMAGES[path] if part == "image" else AUDIO
    name = "input" if path == RESPONSES else "messages"

    error = refusal(path, json.dumps(asked(path, **{name: [{**HI, "content": [found]}]})).encode())

    assert error["message"].startswith(f"{name}[0].content[0].type must be ")
    assert found["type"] in error["message"]


@pytest.mark.parametrize(
    ("path", "told", "roles"),
    [
        (
            CHAT,
            [HI, {"role": "developer", "content": "x"}, HI, {"role": "system", "content": "x"}],
            "user system user system",
        ),
        (CHAT, [HI, {"role": "assistant", "tool_calls": [CALL, CALL]}], "user assistant"),
        (RESPONSES, [HI, CALLED, CALLED], "user assistant"),
        (RESPONSES, [HI, {"role": "developer", "content": "x"}, HI], "user system user"),
        (MESSAGES, [HI, USE, USED, USE, USED], "user assistant tool assistant tool"),
        (MESSAGES, [HI, {"role": "system", "content": "x"}, HI], "user system user"),
        (MESSAGES, [USE], "assistant"),
    ],
)
def test_unusual_orders_of_roles_are_passed_on_unchanged(
    path: str, told: list[Any], roles: str
) -> None:
    name = "input" if path == RESPONSES else "messages"

    assert " ".join(m.role for m in accepted(path, asked(path, **{name: told})).messages) == roles


def test_integers_of_any_size_are_passed_on_and_repeated() -> None:
    huge = {"maximum": 2**200}
    function = {"name": "f", "parameters": huge}
    body = json.dumps(asked(RESPONSES, tools=[{"type": "function", **function}])).encode()

    found, server = sent(RESPONSES, body)

    assert str(2**200) in server.request.tools
    assert json.loads(found.body)["tools"][0]["parameters"] == huge
    calls = tool_calls_text([ToolCall("c", "f", json.dumps(huge))])
    for path in (CHAT, RESPONSES, MESSAGES):
        body = json.dumps(asked(path)).encode()
        assert str(2**200) in sent(path, body, says(Choice("", "stop", calls)))[0].body.decode()


@PATHS
def test_a_name_of_a_megabyte_is_shortened_in_the_error(path: str) -> None:
    server = DialectServer(every, ["policy", "judge"])

    found = server.answer(path, json.dumps(asked(path, model="x" * 2**20)).encode())

    assert found.status == 404
    assert len(found.body) < 10 * NAME_CHARS
