"""Expensive parsing delays only its own session."""

import asyncio
from contextlib import suppress
from math import inf

import pytest

from rollcall.consumers.environments.gateway import connection, parsing_share
from rollcall.consumers.environments.gateway.exchange import GatewayLimits
from rollcall.consumers.environments.gateway.parsing_share import (
    BURST_S,
    LONG_S,
    MOST_S,
    SHARE,
    ParsingShare,
)
from rollcall.schemas.agent_requests import AgentRequest, Choice, ModelReply, Reply
from tests.support.raw_http import Raw, request
from tests.support.served_endpoint import ServedEndpoint, serving

CHUNKS = b"1\r\nx\r\n" * 100_000
CHAT = "/v1/chat/completions"
QUESTION = b'{"messages":[{"role":"user","content":"x"}]}'


class Watched:
    """A connection that counts its pauses."""

    def __init__(self) -> None:
        self.pauses: list[float] = []

    def pause(self, seconds: float) -> None:
        self.pauses.append(seconds)

    def end_soon(self) -> None:
        raise NotImplementedError


def replied(call: AgentRequest) -> Reply:
    return ModelReply(call.d, (Choice("y"),))


def test_cheap_parsing_is_never_throttled_and_costly_parsing_within_bounds() -> None:
    share, watched = ParsingShare(), Watched()
    share.connections.add(watched)

    for _ in range(int(BURST_S / LONG_S) - 1):
        share.charge(LONG_S, again=False)
    assert watched.pauses == []
    owed = share.charge(10 * LONG_S, again=False)
    assert 0 < watched.pauses[0] <= owed
    share.charge(1000.0, again=False)
    assert watched.pauses[-1] <= MOST_S - BURST_S / SHARE


def test_reparsed_bytes_cost_more_than_new_ones() -> None:
    assert ParsingShare().charge(LONG_S / 2, again=True) > ParsingShare().charge(
        LONG_S / 2, again=False
    )


def test_a_body_of_tiny_chunks_is_cut_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connection, "MOST_OWED_S", 1.0)

    async def scene() -> None:
        async with serving(replied, GatewayLimits(body_s=60)) as served:
            raw = await Raw.to(served.port)
            head = request(served.path(CHAT), b"", key=served.endpoint.key)
            chunked = b"Transfer-Encoding: chunked\r\n"
            await raw.send(head.replace(b"Content-Length: 0\r\n", chunked, 1))
            raw.writer.write(CHUNKS)
            await answered(served)
            with suppress(ConnectionError):
                assert await raw.reader.read() == b""
            await raw.close()
            while served.gateway.budget.held:
                await asyncio.sleep(0.01)

    asyncio.run(asyncio.wait_for(scene(), 60))


def test_strangers_parsing_delays_no_sessions_first_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(parsing_share, "SHARE", 1e-9)
    monkeypatch.setattr(parsing_share, "BURST_S", 0.0)
    monkeypatch.setattr(parsing_share, "MOST_S", 300.0)
    monkeypatch.setattr(connection, "MOST_OWED_S", inf)

    async def scene() -> None:
        async with serving(replied) as served:
            newcomers = [await Raw.to(served.port) for _ in range(2)]
            stranger = await Raw.to(served.port)
            await stranger.send(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            assert (await stranger.answer()).status == 404

            for method, path, body in (("GET", "/v1/models", b""), ("POST", CHAT, QUESTION)):
                asking = newcomers.pop()
                data = request(served.path(path), body, key=served.endpoint.key, method=method)
                await asking.send(data)
                assert (await asking.answer()).status == 200
                await asking.close()
            await stranger.close()

    asyncio.run(asyncio.wait_for(scene(), 60))


def test_a_parsing_pause_does_not_close_its_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ParsingShare, "charge", lambda self, seconds, *, again: 1000.0)

    async def scene() -> None:
        async with serving(replied) as served:
            await answered(served)

    asyncio.run(asyncio.wait_for(scene(), 60))


def test_a_session_that_read_its_task_is_known() -> None:
    async def scene() -> None:
        async with serving(replied) as served:
            raw = await Raw.to(served.port)
            await raw.send(request(served.path("/v1/task"), key=served.endpoint.key, method="GET"))
            assert (await raw.answer()).status == 200
            (known,) = served.gateway.connections()
            assert served.endpoint.share.connections == {known}
            await raw.close()

    asyncio.run(asyncio.wait_for(scene(), 60))


async def answered(served: ServedEndpoint) -> None:
    """A client of another session gets its answer."""
    other = served.gateway.open_endpoint(("policy",), {})
    raw = await Raw.to(served.port)
    await raw.send(request(f"/r/{other.key}/v1/models", b"", key=other.key, method="GET"))
    assert (await raw.answer()).status == 200
    await raw.close()
