"""Connections cut at any byte, and the answer to a client that returns.

The gateway sees a client close after a part of an answer; behind a proxy it does not, and then
the retry count decides.
"""

import asyncio
import socket
from collections.abc import Sequence
from itertools import count
from typing import Any

import pytest

from rollcall.consumers.environments.gateway.exchange import GatewayLimits
from rollcall.schemas.agent_requests import AgentRequest, Choice, ModelReply, StepReply
from tests.support.raw_http import Raw, exchange, request
from tests.support.served_endpoint import Script, ServedEndpoint, serving
from tests.support.tiers import cases
from tests.support.waiting import holds

CHAT = "/v1/chat/completions"
RESPONSES = "/v1/responses"
MESSAGES = "/v1/messages"
STEP = "/v1/step"
USER = [{"role": "user", "content": "x"}]
BODIES: dict[str, Any] = {
    CHAT: {"model": "p", "messages": USER},
    RESPONSES: {"model": "p", "input": "x"},
    MESSAGES: {"model": "p", "messages": USER, "max_tokens": 4},
    STEP: {"action": "x"},
}
FORMS = [
    (path, stream) for path in BODIES for stream in (False, True) if path != STEP or not stream
]


def numbered() -> Script:
    """Every ask gets another reply, so that a second one would show."""
    numbers = count()

    def told(call: AgentRequest) -> ModelReply | StepReply:
        number = str(next(numbers))
        if call.kind == "step":
            return StepReply(call.d, number)
        return ModelReply(call.d, (Choice(number, sampled_tokens=1),), number.zfill(8))

    return told


def asking(served: ServedEndpoint, path: str, stream: bool, seed: int, retries: int = 0) -> bytes:
    """A question that differs for every seed."""
    body = {name: _other(value, seed) for name, value in BODIES[path].items()}
    if stream:
        body["stream"] = True
    headers = {"x-stainless-retry-count": str(retries)} if retries else {}
    return request(served.path(path), body, key=served.endpoint.key, **headers)


def _other(value: Any, seed: int) -> Any:
    if isinstance(value, list):
        return [{"role": "user", "content": f"x{seed}"}]
    return f"x{seed}" if value == "x" else value


async def cut_after(port: int, data: bytes, size: int) -> None:
    """Send a request, read this many bytes of its complete answer, and close."""
    loop = asyncio.get_running_loop()
    sock = socket.create_connection(("127.0.0.1", port))
    sock.setblocking(False)
    try:
        await loop.sock_sendall(sock, data)
        ready = asyncio.Event()
        loop.add_reader(sock, ready.set)
        await ready.wait()
        loop.remove_reader(sock)
        while size:
            size -= len(await loop.sock_recv(sock, size))
    finally:
        sock.close()


def offsets(size: int, retries: int) -> Sequence[int]:
    """All offsets of a short answer for a client without a retry count; otherwise some of them."""
    if retries == 0:
        return range(0, size, 1 + size // 1000)
    return (0, 1, size // 2, size - 1)


@pytest.mark.parametrize(("path", "stream"), cases(FORMS, {FORMS[0], FORMS[3]}))
def test_an_answer_cut_at_any_byte_is_repeated_and_asked_once(path: str, stream: bool) -> None:
    async def run() -> None:
        async with serving(numbered(), GatewayLimits()) as served:
            size = await answer_size(served, asking(served, path, stream, 10**6))
            seeds = count(10**6 + 1)
            for retries in (0, 1, 2):
                for offset in offsets(size, retries):
                    seed = next(seeds)
                    asked = len(served.requests)
                    await cut_after(served.port, asking(served, path, stream, seed), offset)
                    again = asking(served, path, stream, seed, retries)
                    answer = await exchange(served.port, again)
                    assert answer.status == 200
                    assert str(asked).encode() in answer.body
                    assert len(served.requests) == asked + 1, f"cut after {offset} of {size}"

    asyncio.run(run())


async def answer_size(served: ServedEndpoint, data: bytes) -> int:
    raw = await Raw.to(served.port)
    head_and_body = await _whole(raw, data)
    await raw.close()
    return head_and_body


async def _whole(raw: Raw, data: bytes) -> int:
    await raw.send(data)
    head = await raw.reader.readuntil(b"\r\n\r\n")
    length = int(head.lower().partition(b"content-length:")[2].split()[0])
    return len(head) + len(await raw.reader.readexactly(length))


@pytest.mark.parametrize("retries", [0, 1, 2])
def test_an_answer_read_whole_is_repeated_only_to_a_retry(retries: int) -> None:
    async def run() -> None:
        async with serving(numbered()) as served:
            first = await exchange(served.port, asking(served, CHAT, False, 1))
            again = await exchange(served.port, asking(served, CHAT, False, 1, retries))

            assert (again.body == first.body) is (retries > 0)
            assert len(served.requests) == (1 if retries else 2)

    asyncio.run(run())


def test_a_client_returning_on_an_open_connection_gets_the_answer_again() -> None:
    async def run() -> None:
        async with serving(numbered()) as served:
            other = await Raw.to(served.port)
            await other.send(
                request(served.path("/v1/models"), method="GET", key=served.endpoint.key)
            )
            await other.answer()
            for seed in range(50):
                await cut_after(served.port, asking(served, CHAT, False, seed), 9)
                await other.send(asking(served, CHAT, False, seed))
                await other.answer()

            assert len(served.requests) == 50
            await other.close()

    asyncio.run(run())


@pytest.mark.parametrize("retries", [0, 1, 2])
@pytest.mark.parametrize(("path", "stream"), FORMS)
def test_a_client_that_left_early_finds_its_call_still_open(
    path: str, stream: bool, retries: int
) -> None:
    async def run() -> None:
        async with serving(lambda _: None) as served:
            raw = await Raw.to(served.port)
            await raw.send(asking(served, path, stream, 1))
            await until_asked(served, 1)
            await raw.close()
            await attached(served, 0)

            raw = await Raw.to(served.port)
            await raw.send(asking(served, path, stream, 1, retries))
            answer = asyncio.create_task(raw.answer())
            await attached(served, 1)
            served.answer(numbered()(served.requests[0]))  # type: ignore[arg-type]

            assert (await answer).status == 200
            assert len(served.requests) == 1
            await raw.close()

    asyncio.run(run())


def test_identical_concurrent_calls_are_each_asked() -> None:
    async def run() -> None:
        async with serving(numbered()) as served:
            data = asking(served, CHAT, False, 1)
            answers = await asyncio.gather(*(exchange(served.port, data) for _ in range(8)))

            assert len(served.requests) == 8
            assert len({answer.body for answer in answers}) == 8

    asyncio.run(run())


def test_requests_with_one_idempotency_key_make_one_call() -> None:
    async def run() -> None:
        async with serving(numbered()) as served:
            head, _, body = asking(served, CHAT, False, 1).partition(b"\r\n\r\n")
            data = head + b"\r\nIdempotency-Key: once\r\n\r\n" + body
            bodies = [(await exchange(served.port, data)).body for _ in range(3)]

            assert len(set(bodies)) == 1
            assert len(served.requests) == 1

    asyncio.run(run())


@pytest.mark.parametrize("at", [0.1, 0.5, 0.99])
def test_a_truncated_request_is_not_asked(at: float) -> None:
    async def run() -> None:
        async with serving(numbered()) as served:
            data = asking(served, CHAT, False, 1)
            raw = await Raw.to(served.port)
            await raw.send(data[: int(len(data) * at)])
            await raw.close()

            await exchange(served.port, asking(served, CHAT, False, 2))
            assert len(served.requests) == 1

    asyncio.run(run())


async def until_asked(served: ServedEndpoint, number: int) -> None:
    await holds(lambda: len(served.requests) >= number)


async def attached(served: ServedEndpoint, number: int) -> None:
    """Wait until this many clients wait for the endpoint's calls."""
    await holds(lambda: served.endpoint.waiting_clients() == number)
