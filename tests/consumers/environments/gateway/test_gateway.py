"""The gateway over raw HTTP: keys, routes, sizes, limits, streams, connections that end."""

import asyncio
import json
import socket
import zlib
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import pytest

from rollcall.consumers.environments.gateway.exchange import GatewayLimits
from rollcall.consumers.environments.gateway.listening_socket import bind
from rollcall.schemas.agent_requests import (
    AgentRequest,
    Choice,
    ErrorReply,
    ModelReply,
    Reply,
    StepReply,
)
from rollcall.schemas.errors import Refused
from tests.support.raw_http import Answer, Raw, exchange, request
from tests.support.served_endpoint import TASK, Script, ServedEndpoint, serving
from tests.support.waiting import holds

CHAT = "/v1/chat/completions"
QUESTION = {"model": "policy", "messages": [{"role": "user", "content": "how much?"}]}
Test = Callable[[ServedEndpoint], Awaitable[None]]


def told(call: AgentRequest) -> Reply:
    """Something of each kind."""
    if call.kind != "model":
        return StepReply(call.d, f"after {call.text}", 0.5, True, False, '{"a":1}')
    return ModelReply(call.d, (Choice("forty-two", sampled_tokens=2),), "c0ffee", 1_700_000_000_000)


def on_a_gateway(
    test: Test,
    script: Script = told,
    policies: tuple[str, ...] = ("policy",),
    **limits: Any,
) -> None:
    async def run() -> None:
        async with serving(script, GatewayLimits(**limits), policies) as served:
            await asyncio.wait_for(test(served), 120)

    asyncio.run(run())


def chat(served: ServedEndpoint, body: Any = QUESTION, **headers: str) -> bytes:
    return request(served.path(CHAT), body, key=served.endpoint.key, **headers)


async def ask(served: ServedEndpoint, body: Any = QUESTION, **headers: str) -> Answer:
    return await exchange(served.port, chat(served, body, **headers))


def test_a_call_is_asked_once_and_answered_in_the_vendors_format() -> None:
    async def test(served: ServedEndpoint) -> None:
        answer = await ask(served)

        assert answer.status == 200
        assert answer.json()["choices"][0]["message"]["content"] == "forty-two"
        assert [one.messages[0].content for one in served.requests] == ["how much?"]

    on_a_gateway(test)


def test_an_endpoint_with_its_own_port_is_reachable_only_there() -> None:
    async def test(served: ServedEndpoint) -> None:
        listener = bind()
        own_port = listener.getsockname()[1]
        own = await served.gateway.open_endpoint_at(["policy"], TASK, listener)
        others, port = served.endpoint.key, served.port

        async def status(port: int, key: str, given: str = "") -> int:
            asked = request(f"/r/{key}/v1/models", method="GET", key=given or key)
            return (await exchange(port, asked)).status

        assert own.url == f"http://127.0.0.1:{own_port}/r/{own.key}"
        assert [await status(own_port, own.key), await status(port, others)] == [200, 200]
        assert [await status(own_port, others), await status(port, own.key)] == [401, 401]
        assert [await status(own_port, "never-drawn"), await status(port, "never-drawn")] == [
            401,
            404,
        ]
        assert await status(own_port, own.key, others) == 401

        # A waiting request gets its 404, and then the port is closed
        body = {"model": "policy", "messages": [{"role": "user", "content": "wait"}]}
        path = f"/r/{own.key}{CHAT}"
        waiting = asyncio.create_task(exchange(own_port, request(path, body, key=own.key)))
        await own.wait(10)
        await own.close()
        assert (await waiting).status == 404
        with pytest.raises(ConnectionRefusedError):
            await status(own_port, own.key)
        assert await status(port, others) == 200

    on_a_gateway(test)


def test_an_endpoints_own_port_does_not_count_towards_other_connections() -> None:
    async def test(served: ServedEndpoint) -> None:
        listener = bind()
        own_port = listener.getsockname()[1]
        own = await served.gateway.open_endpoint_at(["policy"], TASK, listener)
        held = [await Raw.to(own_port) for _ in range(5)]
        asked = request(f"/r/{own.key}/v1/models", method="GET", key=own.key)
        for each in held[:2]:  # the oldest that have shown no key
            with suppress(ConnectionError):
                await each.send(asked)
            with pytest.raises((EOFError, ConnectionError)):
                await each.answer()
        assert (await ask(served)).status == 200
        await held[-1].send(asked)
        assert (await held[-1].answer()).status == 200
        for each in held:
            await each.close()
        await own.close()

    on_a_gateway(test, connections_of_session=3)


def test_the_key_is_required_in_the_path_and_the_header() -> None:
    async def test(served: ServedEndpoint) -> None:
        key = served.endpoint.key
        got = served.path("/v1/models")

        async def status(path: str, **headers: str) -> int:
            return (await exchange(served.port, request(path, method="GET", **headers))).status

        assert await status(got, Authorization=f"Bearer {key}") == 200
        assert await status(got, Authorization=f"bearer {key}") == 200
        assert await status(got, x_api_key=key) == 200
        assert await status(got) == 401
        assert await status(got, x_api_key="wrong") == 401
        assert await status(got, Authorization=f"Basic {key}") == 401
        assert await status(got, Authorization="Bearer k\xe9y") == 401
        assert await status("/r/another/v1/models", x_api_key=key) == 401
        assert await status("/r/another/v1/models", x_api_key="another") == 404
        assert await status("/v1/models", x_api_key=key) == 404
        assert await status("/r//v1/models") == 404

    on_a_gateway(test)


def test_head_of_the_base_url_says_whether_its_line_is_served_there() -> None:
    async def test(served: ServedEndpoint) -> None:
        listener = bind()
        own = await served.gateway.open_endpoint_at(["policy"], TASK, listener)
        others, own_port = served.endpoint.key, listener.getsockname()[1]

        async def status(port: int, path: str) -> int:
            raw = await Raw.to(port)
            await raw.send(request(path, method="HEAD"))
            head = await raw.reader.readuntil(b"\r\n\r\n")
            await raw.close()
            return int(head.split()[1])

        for below in ("", "/", "/api/hello"):
            assert await status(served.port, f"/r/{others}{below}") == 200
            assert await status(own_port, f"/r/{own.key}{below}") == 200
            assert await status(served.port, f"/r/{own.key}{below}") == 404
            assert await status(own_port, f"/r/{others}{below}") == 404
            assert await status(served.port, f"/r/never-drawn{below}") == 404
        assert await status(served.port, f"/r/{others}/v1/models") == 404
        await own.close()

    on_a_gateway(test)


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v1/embeddings"),
        ("GET", CHAT),
        ("DELETE", "/v1/models"),
        ("GET", "/"),
        ("OPTIONS", CHAT),
        ("GET", "/v1/models/policy"),
        ("POST", "/v1/models"),
    ],
)
def test_any_other_route_is_404_in_json(method: str, path: str) -> None:
    async def test(served: ServedEndpoint) -> None:
        data = request(served.path(path), method=method, key=served.endpoint.key)
        answer = await exchange(served.port, data)

        assert answer.status == 404
        assert method in answer.json()["error"]["message"]

    on_a_gateway(test)


def test_models_and_the_task_are_served() -> None:
    async def test(served: ServedEndpoint) -> None:
        key = served.endpoint.key
        got = [
            (await exchange(served.port, request(served.path(path), method="GET", key=key))).json()
            for path in ("/v1/models", "/v1/task")
        ]

        assert [model["id"] for model in got[0]["data"]] == ["policy", "judge"]
        assert got[1] == TASK

    on_a_gateway(test, policies=("policy", "judge"))


def test_an_unknown_model_among_several_policies_is_404() -> None:
    async def test(served: ServedEndpoint) -> None:
        answer = await ask(served, {**QUESTION, "model": "gpt"})
        assert answer.status == 404
        assert "policy, judge" in answer.json()["error"]["message"]
        assert (await ask(served, {**QUESTION, "model": "judge"})).status == 200
        assert [one.policy for one in served.requests] == ["judge"]

    on_a_gateway(test, policies=("policy", "judge"))


def test_agents_can_step_their_environment_and_submit_a_result() -> None:
    async def test(served: ServedEndpoint) -> None:
        key = served.endpoint.key
        step = request(served.path("/v1/step"), {"action": "ls"}, key=key)
        finish = request(served.path("/v1/finish"), {"result": "done"}, key=key)

        shown = (await exchange(served.port, step)).json()
        assert shown["text"] == "after ls"
        assert [shown["reward"], shown["terminated"], shown["truncated"]] == [0.5, True, False]
        assert (await exchange(served.port, finish)).status == 200
        assert [(one.kind, one.text) for one in served.requests] == [
            ("step", "ls"),
            ("finish", "done"),
        ]

    on_a_gateway(test)


@pytest.mark.parametrize("late", [False, True])
def test_an_http_1_0_client_is_answered_and_its_connection_closed(late: bool) -> None:
    async def test(served: ServedEndpoint) -> None:
        raw = await Raw.to(served.port)
        data = chat(served, {**QUESTION, "stream": True})
        await raw.send(data.replace(b"HTTP/1.1", b"HTTP/1.0", 1))
        if late:
            await raw.reader.readuntil(b": wait")
            served.answer(told(served.requests[0]))

        assert (await raw.reader.read()).endswith(b"data: [DONE]\n\n")
        await raw.close()

    on_a_gateway(test, (lambda _: None) if late else told, hold_s=0.01 if late else 60)


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"action": 3}', b'{"result": "x"}'])
def test_a_step_without_an_action_is_refused_by_name(body: bytes) -> None:
    async def test(served: ServedEndpoint) -> None:
        data = request(served.path("/v1/step"), body, key=served.endpoint.key)
        answer = await exchange(served.port, data)

        assert answer.status == 400
        assert answer.json()["error"]["message"]
        assert served.requests == []

    on_a_gateway(test)


@pytest.mark.parametrize("body", [b"", b"\xff", b"{}", b'{"messages": 7}', b"[" * 100_000])
def test_a_malformed_body_is_400_and_asks_no_model(body: bytes) -> None:
    async def test(served: ServedEndpoint) -> None:
        answer = await ask(served, body)

        assert answer.status == 400
        assert answer.json()["error"]["type"] == "invalid_request_error"
        assert served.requests == []

    on_a_gateway(test)


def test_a_body_at_the_limit_is_accepted_and_a_larger_one_refused() -> None:
    async def test(served: ServedEndpoint) -> None:
        words = {**QUESTION, "ignored": ""}
        room = 100_000 - len(json.dumps(words))

        assert (await ask(served, {**QUESTION, "ignored": "x" * room})).status == 200
        refused = await ask(served, {**QUESTION, "ignored": "x" * (room + 1)})
        assert refused.status == 413
        assert "100,000 bytes" in refused.json()["error"]["message"]
        assert len(served.requests) == 1

    on_a_gateway(test, body_bytes=100_000)


def test_other_requests_are_answered_while_a_large_body_is_read() -> None:
    async def test(served: ServedEndpoint) -> None:
        many = [{"role": "user", "content": "x"}] * 20_000
        large = asyncio.create_task(ask(served, {"messages": many}))
        quick = 0
        while not large.done():
            assert (await ask(served)).status == 200
            quick += 1

        assert (await large).status == 200
        assert quick > 3

    on_a_gateway(test)


def test_a_small_body_that_decompresses_beyond_the_limit_is_refused() -> None:
    async def test(served: ServedEndpoint) -> None:
        bomb = zlib.compress(json.dumps({**QUESTION, "ignored": "x" * 50_000_000}).encode())
        answer = await ask(served, bomb, Content_Encoding="deflate")
        assert answer.status == 413

        packed = zlib.compress(json.dumps(QUESTION).encode())
        assert (await ask(served, packed, Content_Encoding="deflate")).status == 200
        assert (await ask(served, packed[:-4], Content_Encoding="deflate")).status == 400

    on_a_gateway(test, body_bytes=100_000)


def test_a_client_that_expects_100_continue_gets_it() -> None:
    async def test(served: ServedEndpoint) -> None:
        raw = await Raw.to(served.port)
        head, _, body = chat(served, Expect="100-continue").partition(b"\r\n\r\n")
        await raw.send(head + b"\r\n\r\n")

        assert (await raw.reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 100")
        await raw.send(body)
        assert (await raw.answer()).status == 200
        await raw.close()

    on_a_gateway(test)


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
        b"POST /r/x/v1/models HTTP/9.9\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: minus\r\n\r\n",
        b"GET / HTTP/1.1\r\nname\x00: value\r\n\r\n",
        b"GET / HTTP/1.1\r\nX: " + b"x" * 20_000 + b"\r\n\r\n",
    ],
)
def test_a_malformed_http_request_gets_json_and_a_closed_connection(data: bytes) -> None:
    async def test(served: ServedEndpoint) -> None:
        raw = await Raw.to(served.port)
        await raw.send(data)

        answer = await raw.answer()
        assert answer.status == 400
        assert answer.json()["error"]["message"]
        assert await raw.reader.read() == b""
        await raw.close()

    on_a_gateway(test)


def whole(body: bytes) -> dict[str, str]:
    return {"Content-Encoding": "deflate", "Content-Length": str(len(body))}


IN_CHUNKS = {"Transfer-Encoding": "chunked"}
UNREADABLE: list[tuple[dict[str, str], bytes]] = [
    (whole(b"{}{}"), b"{}{}"),  # deflated, it would have to continue
    (IN_CHUNKS, b"2\r\n{}\r\nzz\r\n"),
    (IN_CHUNKS, b"2\r\n{}\r\n\x00\x00"),
    (IN_CHUNKS, b"2\r\n{}{}\r\n"),
    (IN_CHUNKS, b"2\r\n{}\r\n0\r\nbad\x00: x\r\n"),
    (IN_CHUNKS, b"2\r\n{}\r\n" + b"x" * 5_000 + b"\r\n"),
]


def head_of(served: ServedEndpoint, route: str, headers: dict[str, str]) -> bytes:
    endpoints = {"Host": "x", "Authorization": f"Bearer {served.endpoint.key}", **headers}
    fields = "".join(f"{name}: {value}\r\n" for name, value in endpoints.items())
    return f"POST {served.path(route)} HTTP/1.1\r\n{fields}\r\n".encode()


@pytest.mark.parametrize(("headers", "body"), UNREADABLE)
def test_a_body_that_turns_malformed_while_it_is_read_gets_400(
    headers: dict[str, str], body: bytes
) -> None:
    async def test(served: ServedEndpoint) -> None:
        raw = await Raw.to(served.port)
        await raw.send(head_of(served, CHAT, {**headers, "Expect": "100-continue"}))
        assert (await raw.answer()).status == 100  # it is read from now on
        await raw.send(body)

        answer = await raw.answer()

        assert (answer.status, answer.headers["connection"]) == (400, "close")
        assert len(answer.json()["error"]["message"]) < 600
        assert await raw.reader.read() == b""
        await raw.close()

    on_a_gateway(test)


@pytest.mark.parametrize(("headers", "body"), UNREADABLE)
def test_a_malformed_body_after_the_answer_closes_its_connection(
    headers: dict[str, str], body: bytes
) -> None:
    async def test(served: ServedEndpoint) -> None:
        raw = await Raw.to(served.port)
        await raw.send(head_of(served, "/v1/nowhere", headers))
        assert (await raw.answer()).status == 404
        await raw.send(body)

        async with asyncio.timeout(5):  # no lingering for bytes that cannot arrive
            assert await raw.reader.read() == b""
        await raw.close()

    on_a_gateway(test)


def test_a_malformed_pipelined_body_is_answered_after_the_open_request() -> None:
    async def test(served: ServedEndpoint) -> None:
        raw = await Raw.to(served.port)
        await raw.send(chat(served) + head_of(served, CHAT, IN_CHUNKS) + b"2\r\n{}\r\n")
        await holds(lambda: len(served.requests) == 1)
        await raw.send(b"zz\r\n")
        served.answer(told(served.requests[0]))

        assert [(await raw.answer()).status for _ in range(2)] == [200, 400]
        assert await raw.reader.read() == b""
        await raw.close()

    on_a_gateway(test, script=lambda _: None)


def test_a_declined_upgrade_closes_the_connection_after_the_answer() -> None:
    async def test(served: ServedEndpoint) -> None:
        wishes = {"Connection": "Upgrade", "Upgrade": "websocket"}
        data = request(served.path("/v1/nowhere"), QUESTION, key=served.endpoint.key, **wishes)
        raw = await Raw.to(served.port)
        for at in range(0, len(data), 100):
            await raw.send(data[at : at + 100])
            await asyncio.sleep(0)

        answer = await raw.answer()

        assert (answer.status, answer.headers["connection"]) == (404, "close")
        assert await raw.reader.read() == b""
        await raw.close()

    on_a_gateway(test)


def test_one_connection_serves_pipelined_requests_in_order() -> None:
    async def test(served: ServedEndpoint) -> None:
        raw = await Raw.to(served.port)
        await raw.send(chat(served) + chat(served))

        assert [(await raw.answer()).status for _ in range(2)] == [200, 200]
        assert len(served.requests) == 2
        await raw.close()

    on_a_gateway(test)


def test_an_answer_is_sent_in_one_write() -> None:
    async def test(served: ServedEndpoint) -> None:
        raw = await Raw.to(served.port)
        await raw.send(chat(served))
        await raw.answer()
        [connection] = served.gateway.connections()
        transport = connection.transport
        assert transport is not None
        assert transport.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        written: list[bytes] = []
        connection.transport = Spy(transport, written)
        for body in (QUESTION, {**QUESTION, "stream": True}, {}):
            await raw.send(chat(served, body))
            await raw.answer()

        assert len(written) == 3
        await raw.close()

    on_a_gateway(test)


class Spy:
    """A transport that notes what is written."""

    def __init__(self, transport: Any, written: list[bytes]) -> None:
        self._transport = transport
        self._written = written

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        self._written.append(bytes(data))
        self._transport.write(data)


def test_too_many_open_requests_get_429_with_a_retry_time() -> None:
    async def test(served: ServedEndpoint) -> None:
        raws = [await Raw.to(served.port) for _ in range(3)]
        for raw in raws:
            await raw.send(chat(served))
        await holds(lambda: len(served.requests) == 3)

        refused = await ask(served)

        assert refused.status == 429
        assert refused.headers["retry-after"] == "1"
        assert refused.json()["error"]["type"] == "rate_limit_error"
        served.answer(told(served.requests[0]))
        assert (await raws[0].answer()).status == 200
        for raw in raws:
            await raw.close()

    on_a_gateway(test, lambda _: None, open_calls_of_session=3)


def test_an_agent_with_a_thousand_calls_gets_64_and_displaces_no_other() -> None:
    async def test(served: ServedEndpoint) -> None:
        raws = await asyncio.gather(*(Raw.to(served.port) for _ in range(1000)))
        await asyncio.gather(*(raw.send(chat(served)) for raw in raws))
        await holds(lambda: len(served.gateway.connections()) == 64)
        assert len(served.requests) == 64

        other = served.gateway.open_endpoint(["policy"], {})
        data = request(f"/r/{other.key}/v1/step", {"action": "ls"}, key=other.key)
        answer = asyncio.create_task(exchange(served.port, data))
        await other.wait(30)
        other.answer(told(other.open_requests()[0]))
        assert (await answer).status == 200

        await served.endpoint.close()
        statuses = [(await raw.answer()).status for raw in raws]
        assert Counter(statuses) == {404: 64, 429: 936}
        for raw in raws:
            await raw.close()

    on_a_gateway(test, lambda _: None)


def test_connections_above_the_limit_are_closed_and_the_others_continue() -> None:
    async def test(served: ServedEndpoint) -> None:
        raws = [await Raw.to(served.port) for _ in range(3)]
        for raw in raws:  # each shows a key, so none of them is closed for a newer one
            await raw.send(chat(served))
            assert (await raw.answer()).status == 200
        await holds(lambda: len(served.gateway.connections()) == 3)
        with pytest.raises((ConnectionError, EOFError)):
            await ask(served)

        await raws[0].close()
        await holds(lambda: len(served.gateway.connections()) == 2)
        assert (await ask(served)).status == 200
        for raw in raws[1:]:
            await raw.close()

    on_a_gateway(test, connections=3)


def test_a_session_has_a_connection_limit_and_leaves_others_theirs() -> None:
    """Idle connections count too: with a key, none of them is closed for a newer one."""

    async def test(served: ServedEndpoint) -> None:
        raws = [await Raw.to(served.port) for _ in range(4)]
        for raw in raws[:3]:
            await raw.send(chat(served))
            assert (await raw.answer()).status == 200
        await raws[3].send(chat(served))
        refused = await raws[3].answer()
        assert (refused.status, refused.headers["connection"]) == (429, "close")
        assert "3 connections of this agent" in refused.json()["error"]["message"]
        assert len(served.requests) == 3

        await raws[0].send(chat(served))  # it is one of the three
        assert (await raws[0].answer()).status == 200
        other = served.gateway.open_endpoint(["policy"], {})
        asked = request(f"/r/{other.key}{CHAT}", {}, key=other.key)
        assert (await exchange(served.port, asked)).status == 400  # read, and not turned away
        await raws[1].close()
        await holds(lambda: len(served.endpoint.share.connections) == 2)
        assert (await ask(served)).status == 200
        for raw in (raws[0], *raws[2:]):
            await raw.close()

    on_a_gateway(test, connections_of_session=3)


def test_a_closed_line_is_404_for_waiting_and_later_clients() -> None:
    async def test(served: ServedEndpoint) -> None:
        raw = await Raw.to(served.port)
        await raw.send(chat(served))
        await holds(lambda: bool(served.requests))

        await served.endpoint.close()

        assert (await raw.answer()).status == 404
        assert (await ask(served)).status == 404
        await raw.close()

    on_a_gateway(test, lambda _: None)


def test_an_endpoint_closed_during_a_body_is_not_asked() -> None:
    async def test(served: ServedEndpoint) -> None:
        raw = await Raw.to(served.port)
        head, _, body = chat(served, Expect="100-continue").partition(b"\r\n\r\n")
        await raw.send(head + b"\r\n\r\n")
        await raw.reader.readuntil(b"\r\n\r\n")

        await served.endpoint.close()
        await raw.send(body)

        assert (await raw.answer()).status == 404
        assert served.requests == []
        assert served.gateway.open_calls.count == 0
        await raw.close()

    on_a_gateway(test)


@pytest.mark.parametrize(
    ("status", "headers"),
    [
        (400, {}),
        (404, {}),
        (429, {"retry-after": "1"}),
        (503, {"x-should-retry": "false"}),
    ],
)
def test_a_failure_tells_the_client_if_it_may_retry(status: int, headers: dict[str, str]) -> None:
    async def test(served: ServedEndpoint) -> None:
        answer = await ask(served)

        assert answer.status == status
        told_by = {k: v for k, v in answer.headers.items() if "retry" in k}
        assert told_by == headers

    on_a_gateway(test, lambda one: ErrorReply(one.d, status, "code", "words"))


def streamed(answer: Answer) -> list[Any]:
    lines = answer.body.decode().split("\n\n")
    return [json.loads(line[6:]) for line in lines if line.startswith("data: {")]


def test_a_stream_answered_in_time_is_sent_whole() -> None:
    async def test(served: ServedEndpoint) -> None:
        answer = await ask(served, {**QUESTION, "stream": True})

        assert answer.headers["content-type"] == "text/event-stream"
        assert "content-length" in answer.headers
        deltas = [chunk["choices"][0]["delta"].get("content", "") for chunk in streamed(answer)]
        assert "".join(deltas) == "forty-two"
        assert answer.body.endswith(b"data: [DONE]\n\n")

    on_a_gateway(test)


@pytest.mark.parametrize("fails", [False, True])
def test_a_long_waiting_stream_begins_early_and_reports_its_outcome_within(fails: bool) -> None:
    async def test(served: ServedEndpoint) -> None:
        raw = await Raw.to(served.port)
        await raw.send(chat(served, {**QUESTION, "stream": True}))
        head = await raw.reader.readuntil(b": wait\n\n")
        assert head.startswith(b"HTTP/1.1 200")
        await raw.reader.readuntil(b": wait\n\n")

        [asked] = served.requests
        served.answer(ErrorReply(asked.d, 404, "gone", "no more") if fails else told(asked))

        rest = await raw.reader.readuntil(b"0\r\n\r\n")
        assert (b"no more" in rest) is fails
        assert (b"[DONE]" in rest) is not fails
        await raw.send(request(served.path("/v1/models"), method="GET", key=served.endpoint.key))
        assert (await raw.answer()).status == 200
        await raw.close()

    on_a_gateway(test, lambda _: None, hold_s=0.01, wait_every_s=0.01)


def test_a_begun_stream_reports_its_lines_closing_as_an_event() -> None:
    async def test(served: ServedEndpoint) -> None:
        raw = await Raw.to(served.port)
        await raw.send(chat(served, {**QUESTION, "stream": True}))
        await raw.reader.readuntil(b": wait\n\n")

        await served.endpoint.close()

        assert b"is over" in await raw.reader.readuntil(b"0\r\n\r\n")
        await raw.close()

    on_a_gateway(test, lambda _: None, hold_s=0.01)


def test_an_occupied_port_is_refused_in_one_line() -> None:
    with bind() as taken:
        port = taken.getsockname()[1]
        with pytest.raises(Refused, match=f"port {port}.*environments.gateway_port") as refused:
            bind(port=port)
        assert "\n" not in str(refused.value)


def test_a_gateway_may_close_twice_and_frees_its_port() -> None:
    async def run() -> int:
        async with serving(told) as served:
            raw = await Raw.to(served.port)
            await raw.send(chat(served))
            await raw.answer()
            await served.gateway.close()
            assert await raw.reader.read() == b""
            await raw.close()
            return served.port

    bind(port=asyncio.run(run())).close()
