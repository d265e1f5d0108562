"""An answer that a client receives and sends back is read as the policy's answer."""

import json
from collections.abc import Iterable
from typing import Any

import httpx
import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rollcall.inference.dialects.routes import ROUTES
from rollcall.schemas.agent_requests import Choice, ModelReply
from rollcall.schemas.messages import Message
from rollcall.schemas.tool_calls import ToolCall, json_text, tool_calls_text
from tests.support.avro_messages import FEW

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**80), 2**80) | st.floats(-9, 9) | TEXTS,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(TEXTS, inner, max_size=2),
    max_leaves=4,
)
OBJECTS = st.dictionaries(TEXTS, VALUES, max_size=2).map(json_text)
CALLS = st.lists(st.builds(ToolCall, TEXTS, TEXTS, OBJECTS), max_size=2).map(tool_calls_text)
USER = {"role": "user", "content": "Hi"}
Body = dict[str, Any]


def chat_echo(answer: Body) -> Body:
    return {"messages": [USER, answer["choices"][0]["message"]]}


def responses_echo(answer: Body) -> Body:
    return {"input": [USER, *answer["output"]]}


def messages_echo(answer: Body) -> Body:
    return {
        "max_tokens": 5,
        "messages": [USER, {"role": "assistant", "content": answer["content"]}],
    }


ECHOES = {
    "/v1/chat/completions": chat_echo,
    "/v1/responses": responses_echo,
    "/v1/messages": messages_echo,
}
FIRST = {"messages": [USER], "input": "Hi", "max_tokens": 5}


def told(path: str, text: str, calls: str, *, stream: bool = False) -> tuple[Message, bytes]:
    dialect = ROUTES[path]
    request = dialect.read(orjson.dumps(FIRST | {"stream": stream}), ["policy"], {})
    reply = ModelReply(request.request.d, (Choice(text, "stop", calls, 1),), "5f" * 16)
    write = dialect.events if stream else dialect.body
    return Message("assistant", text, calls), write(request, reply)


@pytest.mark.parametrize("path", ECHOES)
@given(text=TEXTS, calls=CALLS)
@FEW
def test_an_echoed_answer_is_read_back_unchanged(path: str, text: str, calls: str) -> None:
    said, body = told(path, text, calls)

    # A Python client, which keeps integers of any size, reads and writes the answer
    echo = json.dumps(ECHOES[path](json.loads(body))).encode()
    assert ROUTES[path].read(echo, ["policy"], {}).request.messages[1:] == (said,)


def lines(data: bytes) -> Iterable[str]:
    """Split lines at Unicode line ends, as some clients do."""
    return httpx.Response(200, content=data).iter_lines()


@pytest.mark.parametrize("path", ECHOES)
@given(text=TEXTS, calls=CALLS)
@example(text="a\u2028b\u2029c\x85d\r\ne\x0bf\x0c\x1c\x1d\x1e", calls="")
@FEW
def test_every_line_of_a_stream_is_complete(path: str, text: str, calls: str) -> None:
    _, data = told(path, text, calls, stream=True)

    found = list(lines(data))

    assert {line.partition(":")[0] for line in found} <= {"event", "data", ""}
    events = [line.removeprefix("data: ") for line in found if line.startswith("data: ")]
    assert all(orjson.loads(event) for event in events if event != "[DONE]")
    assert len(found) == data.count(b"\n")
