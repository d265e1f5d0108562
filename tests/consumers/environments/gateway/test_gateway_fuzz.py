"""Ten thousand fuzzed requests: the gateway answers each next request.

Each gets an answer in its vendor's format, or ends its own connection. Nothing fails within the
gateway, and abandoned requests leave no state.
"""

import asyncio
import json
import logging
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from rollcall.consumers.environments.gateway.exchange import GatewayLimits
from rollcall.schemas.agent_requests import (
    AgentRequest,
    Choice,
    ErrorReply,
    ModelReply,
    Reply,
    StepReply,
)
from rollcall.schemas.tool_calls import ToolCall, tool_calls_text
from tests.support.raw_http import Answer, Raw, request
from tests.support.served_endpoint import ServedEndpoint, serving
from tests.support.waiting import holds

REQUESTS = 10_000
TOGETHER = 50
"""Requests of one example, which share connections."""
BODY_BYTES = 20_000
ANSWERED_S = 120
"""After which a request counts as never answered."""
USER = [{"role": "user", "content": "x"}]
TOOL = {"name": "f", "parameters": {"type": "object"}}
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {
        "model": "p",
        "messages": USER,
        "stream": True,
        "n": 2,
        "stop": ["a"],
        "logprobs": True,
        "tools": [{"type": "function", "function": TOOL}],
        "tool_choice": "auto",
        "stream_options": {"include_usage": True},
        "max_tokens": 3,
        "return_token_ids": True,
    },
    "/v1/responses": {
        "model": "p",
        "input": USER,
        "stream": True,
        "tools": [{"type": "function", **TOOL}],
        "instructions": "y",
        "max_output_tokens": 3,
        "previous_response_id": "z",
    },
    "/v1/messages": {
        "model": "p",
        "messages": USER,
        "max_tokens": 3,
        "stream": True,
        "system": "y",
        "tools": [{"name": "f", "input_schema": {}}],
        "tool_choice": {"type": "auto"},
        "stop_sequences": ["a"],
    },
    "/v1/messages/count_tokens": {"model": "p", "messages": USER, "system": "y"},
    "/v1/step": {"action": "x"},
    "/v1/finish": {"result": "x"},
    "/v1/nowhere": {},
}
VALUES: list[Any] = [
    None, True, 0, -1, 1, 1.5, 1e308, 2**63, 10**30, "", "x", "\u0000", "\U0001f600", [], {}, [[]],
    [None], [{}], {"type": "text"}, [{"type": "text", "text": "x"}], [{"role": "tool"}],
    [{"role": "assistant", "tool_calls": [{}]}], [{"type": "function_call_output"}],
    [{"role": "user", "content": [{"type": "image_url"}]}], "x" * 30_000,
]  # fmt: skip
BYTES = [
    b"",
    b"{",
    b"[]",
    b"null",
    b'"x"',
    b"\xff\xfe",
    b"{}" * 9,
    b"[" * 9_000,
    b'{"a":' * 5_000,
    b'{"messages": "\\ud800"}',
    b"NaN",
    b"\x00" * 99,
    b"{}\r\n\r\nGET / HTTP/1.1\r\n\r\n",
]
HEADERS: list[dict[str, str]] = [
    {},
    {},
    {},
    {},
    {"x-stainless-retry-count": "1"},
    {"x-stainless-retry-count": "minus"},
    {"x-stainless-retry-count": "0"},
    {"Idempotency-Key": "k"},
    {"Idempotency-Key": "\xe9" * 99},
    {"Connection": "close"},
    {"Connection": "Upgrade", "Upgrade": "websocket"},
    {"Expect": "something"},
    {"Accept": "text/html"},
    {"Content-Type": "multipart/form-data"},
    {"Authorization": "Bearer wrong"},
    {"Authorization": "Bearer \xff\xfe"},
    {"Authorization": ""},
    {"X-Long": "x" * 7_000},
]
BROKEN: list[dict[str, str]] = [
    {"Content-Encoding": "gzip"},
    {"Content-Encoding": "deflate"},
    {"Content-Encoding": "br"},
    {"Content-Length": "-1"},
    {"Content-Length": "x"},
    {"Transfer-Encoding": "gzip"},
    {"X-Long": "x" * 70_000},
    {"Bad\x00Name": "x"},
    {"Expect": "100-continue"},
]
"""After these the connection may end, with an answer or without: who sends them has broken HTTP."""


@dataclass(frozen=True, repr=False)
class Plan:
    """One request, and how it is sent."""

    path: str
    body: bytes
    headers: dict[str, str]
    chunk: int
    """Bytes of a chunk; 0: a body with a length."""
    pieces: int
    """Into how many writes it is cut."""
    sent: float
    """Which part of it is sent before the connection is closed; 1: all."""
    read: int
    """How many bytes of the answer are read before it is closed; -1: all."""
    broken: bool = False

    def __repr__(self) -> str:
        how = f"chunk={self.chunk} pieces={self.pieces} sent={self.sent} read={self.read}"
        return f"{self.path} {self.body[:200]!r} {str(self.headers)[:60]} {how}"

    def data(self, served: ServedEndpoint) -> bytes:
        given = {"key": "" if "Authorization" in self.headers else served.endpoint.key}
        path = served.path(self.path)
        if not self.chunk:
            return request(path, self.body, **given, **self.headers)
        sizes = range(0, len(self.body), self.chunk)
        parts = [self.body[at : at + self.chunk] for at in sizes]
        chunks = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"
        data = request(path, b"", **given, **self.headers, Transfer_Encoding="chunked")
        return data.replace(b"Content-Length: 0\r\n", b"", 1) + chunks


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    path = draw(st.sampled_from(list(BODIES)))
    kind = draw(st.integers(0, 9))
    body: dict[str, Any] = dict(BODIES[path])
    if kind >= 2:
        for field in draw(st.lists(st.sampled_from([*body, "unknown"]), max_size=3)):
            body[field] = draw(st.sampled_from(VALUES))
    data = json.dumps(body).encode()
    if kind == 0:
        data = draw(st.sampled_from(BYTES))
    if kind == 1:
        at = draw(st.integers(0, len(data)))
        data = data[:at] + draw(st.binary(max_size=8)) + data[at + draw(st.integers(0, 8)) :]
    broken = draw(st.integers(0, 19)) == 0
    early = draw(st.integers(0, 19))
    return Plan(
        path,
        data,
        draw(st.sampled_from(BROKEN if broken else HEADERS)),
        draw(st.sampled_from([0, 0, 0, 7, 4096])),
        draw(st.sampled_from([1, 1, 1, 2, 5])),
        draw(st.floats(0, 0.99)) if early == 0 else 1,
        draw(st.integers(0, 400)) if early == 1 else -1,
        broken,
    )


def told(call: AgentRequest) -> Reply:
    """Each sort of reply, by the ask's digest."""
    sort = int(call.d[:2], 16) % 8
    if sort < 3:
        return ErrorReply(call.d, (404, 429, 503)[sort], "code", "words")
    if call.kind != "model":
        return StepReply(call.d, "shown")
    calls = tool_calls_text([ToolCall("call_1", "f", '{"a":1}')] if sort == 3 else [])
    choice = Choice("said", "length" if sort == 4 else "stop", calls, 1, (5,), (-0.5,))
    return ModelReply(call.d, (choice,) * call.n, "0" * 32, 1_700_000_000_000, 2, (3, 4))


class Client:
    """Sends plans over one connection after the other."""

    def __init__(self, served: ServedEndpoint) -> None:
        self.served = served
        self.raw: Raw | None = None
        self.carried: list[Plan] = []
        """By this connection, the latest last."""

    async def carry_out(self, plan: Plan) -> None:
        raw = self.raw = self.raw or await Raw.to(self.served.port)
        self.carried.append(plan)
        data = plan.data(self.served)
        sent = data[: int(len(data) * plan.sent)]
        try:
            await self._send(raw, sent, plan.pieces)
            if len(sent) < len(data):
                self.leave()
            elif plan.read >= 0:
                await raw.reader.read(plan.read or 1)
                self.leave()
            else:
                await self._check(plan, await self._answer(raw, plan))
        except (ConnectionError, asyncio.IncompleteReadError):
            assert plan.broken, f"the connection of {plan} was cut; it carried {self.carried}"
            self.leave()

    async def _answer(self, raw: Raw, plan: Plan) -> Answer:
        try:
            return await asyncio.wait_for(raw.answer(), ANSWERED_S)
        except TimeoutError:
            pytest.fail(f"{plan} is not answered; its connection carried {self.carried}")

    async def _send(self, raw: Raw, data: bytes, pieces: int) -> None:
        size = len(data) // pieces + 1
        for at in range(0, len(data), size):
            with suppress(ConnectionError):  # it may be answered and closed before it is read
                await raw.send(data[at : at + size])
            await asyncio.sleep(0)

    async def _check(self, plan: Plan, answer: Answer) -> None:
        if answer.status == 100:
            assert self.raw is not None
            answer = await self._answer(self.raw, plan)
        well_formed(plan, answer)
        if answer.headers.get("connection") == "close" or answer.status == 413 or plan.broken:
            self.leave()

    def leave(self) -> None:
        if self.raw is not None:
            self.raw.writer.close()
            self.raw = None
            self.carried = []

    async def works(self) -> None:
        """The gateway still serves its models."""
        key = self.served.endpoint.key
        raw = await Raw.to(self.served.port)
        await raw.send(request(self.served.path("/v1/models"), method="GET", key=key))
        assert (await raw.answer()).status == 200
        await raw.close()


def well_formed(plan: Plan, answer: Answer) -> None:
    assert answer.status in {200, 400, 401, 404, 413, 429, 503}, plan
    kind = answer.headers["content-type"]
    if answer.status == 200:
        assert kind in {"application/json", "text/event-stream"}
        if kind == "application/json":
            assert isinstance(answer.json(), dict)
        return
    assert kind == "application/json", plan
    error = answer.json()["error"]
    assert error["message"], plan
    assert error["type"], plan
    if not plan.broken:  # a request that is no HTTP has no path, and so no vendor
        anthropic = plan.path.startswith("/v1/messages")
        assert (answer.json().get("type") == "error") is anthropic, plan


@pytest.fixture
def on_loop(caplog: pytest.LogCaptureFixture) -> Iterator[Any]:
    loop = asyncio.new_event_loop()
    raised: list[Any] = []
    loop.set_exception_handler(lambda _, context: raised.append(context))
    caplog.set_level(logging.WARNING)
    yield loop.run_until_complete
    loop.close()
    assert raised == []
    assert [record.getMessage() for record in caplog.records] == []


@pytest.mark.thorough
@pytest.mark.timeout(600)
@pytest.mark.filterwarnings("ignore:Generating overly large repr")
def test_the_gateway_survives_fuzzed_requests(on_loop: Any) -> None:
    limits = GatewayLimits(body_bytes=BODY_BYTES)
    gateway = serving(told, limits)
    served: ServedEndpoint = on_loop(gateway.__aenter__())
    counted = 0

    @settings(
        max_examples=REQUESTS // TOGETHER,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(st.lists(plans(), min_size=TOGETHER, max_size=TOGETHER))
    def every(batch: list[Plan]) -> None:
        nonlocal counted
        counted += len(batch)
        on_loop(send_all(served, batch))

    try:
        every()
        on_loop(nothing_stays(served))
    finally:
        on_loop(gateway.__aexit__(None, None, None))
    assert counted >= REQUESTS * 0.9


async def send_all(served: ServedEndpoint, batch: list[Plan]) -> None:
    client = Client(served)
    try:
        for plan in batch:
            await client.carry_out(plan)
    finally:
        client.leave()
    await client.works()


async def nothing_stays(served: ServedEndpoint) -> None:
    await holds(lambda: not (served.gateway.connections() or served.endpoint.open_requests()), 120)
    assert served.gateway.open_calls.count == 0
