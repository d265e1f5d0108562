"""Silent or endless clients do not slow down the other clients of a worker."""

import asyncio
import gc
import json
import os
import resource
import signal
import socket
import subprocess
from contextlib import ExitStack
from tempfile import TemporaryFile

import pytest

from rollcall.compose.processes import module
from rollcall.consumers.environments.gateway.body_budget import BodyBudget
from rollcall.consumers.environments.gateway.exchange import GatewayLimits
from rollcall.consumers.environments.gateway.http_listener import (
    RESERVED_DESCRIPTORS,
    connection_limit,
)
from rollcall.inference.dialects.dialect import Declined
from tests.support.raw_http import request
from tests.support.served_endpoint import ServedEndpoint, serving

MIB = 1024 * 1024


async def opened(served: ServedEndpoint) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("127.0.0.1", served.port)


def head(served: ServedEndpoint, length: int, path: str = "/v1/chat/completions") -> bytes:
    key = served.endpoint.key
    return (
        f"POST /r/{key}{path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key}\r\n"
        f"Content-Length: {length}\r\n\r\n"
    ).encode()


async def status(reader: asyncio.StreamReader) -> int:
    line = await asyncio.wait_for(reader.readline(), 10)
    return int(line.split()[1]) if line else 0


async def models(served: ServedEndpoint) -> int:
    """The status of another request of the session."""
    reader, writer = await opened(served)
    key = served.endpoint.key
    asked = f"GET /r/{key}/v1/models HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key}\r\n\r\n"
    writer.write(asked.encode())
    answered = await status(reader)
    writer.close()
    return answered


def test_silent_and_slow_connections_are_closed_in_time() -> None:
    async def scene() -> None:
        async with serving(lambda _: None, GatewayLimits(first_request_s=0.2)) as served:
            silent, slow = await opened(served), await opened(served)
            slow[1].write(b"POST /r/")
            for reader, writer in (silent, slow):
                assert await asyncio.wait_for(reader.read(), 10) == b""
                writer.close()

    asyncio.run(scene())


def test_strangers_connections_make_room_for_new_ones() -> None:
    async def scene() -> None:
        async with serving(lambda _: None, GatewayLimits(connections=8)) as served:
            strangers = [await opened(served) for _ in range(20)]
            assert await models(served) == 200
            for _, writer in strangers:
                writer.close()

    asyncio.run(scene())


def test_an_endless_body_is_declined_in_time() -> None:
    async def scene() -> None:
        async with serving(lambda _: None, GatewayLimits(body_s=0.2)) as served:
            reader, writer = await opened(served)
            writer.write(head(served, 100) + b"{")
            assert await status(reader) == 408
            writer.close()

    asyncio.run(scene())


def test_the_bodies_of_one_session_stay_within_its_share() -> None:
    limits = GatewayLimits(bodies_of_session_bytes=3 * MIB, bodies_bytes=8 * MIB)

    async def scene() -> None:
        async with serving(lambda _: None, limits) as served:
            open_ = [await opened(served) for _ in range(6)]
            for _, writer in open_:
                writer.write(head(served, 2 * MIB) + b"x" * (2 * MIB - 1))
                await writer.drain()
            reads = [asyncio.create_task(status(reader)) for reader, _ in open_]
            done, _ = await asyncio.wait(reads, timeout=10, return_when=asyncio.FIRST_COMPLETED)
            assert {task.result() for task in done} == {429}
            assert served.gateway.budget.held <= 3 * MIB
            assert await models(served) == 200
            for task, (_, writer) in zip(reads, open_, strict=True):
                task.cancel()
                writer.close()

    asyncio.run(scene())


def test_a_truncated_body_leaves_no_memory_held() -> None:
    async def scene() -> None:
        async with serving(lambda _: None) as served:
            gc.disable()
            try:
                for _ in range(3):
                    _, writer = await opened(served)
                    writer.write(head(served, 2 * MIB) + b"x" * MIB)
                    await writer.drain()
                    writer.close()
                while served.gateway.connections() or served.gateway.budget.held:
                    await asyncio.sleep(0.01)
                held = [each for each in gc.get_objects() if type(each) is bytearray]
                assert all(len(each) < MIB // 2 for each in held)
            finally:
                gc.enable()

    asyncio.run(asyncio.wait_for(scene(), 30))


def test_body_budgets_of_session_and_gateway_are_counted_and_released() -> None:
    budget = BodyBudget(10, 6)
    with budget.body("a") as first, budget.body("b") as second:
        first.add(6)
        with pytest.raises(Declined, match="this session's"):
            first.add(1)
        second.add(4)
        with pytest.raises(Declined, match="the gateway's"):
            second.add(1)

    assert (budget.held, budget.by_session) == (0, {})


def test_a_flood_of_connections_beyond_the_descriptors_leaves_room_for_others() -> None:
    """asyncio's accept goes on without descriptors, with a traceback for each further try."""

    def few_descriptors() -> None:
        resource.setrlimit(
            resource.RLIMIT_NOFILE, (RESERVED_DESCRIPTORS + 88, RESERVED_DESCRIPTORS + 88)
        )

    with (
        TemporaryFile() as errors,
        subprocess.Popen(
            module("rollcall.compose.benchmarks.one_gateway"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            preexec_fn=few_descriptors,
        ) as process,
        ExitStack() as stack,
    ):
        stack.callback(process.kill)
        assert process.stdout is not None
        begun = json.loads(process.stdout.readline())
        to, key = ("127.0.0.1", begun["port"]), begun["keys"][0]
        os.kill(process.pid, signal.SIGSTOP)
        for _ in range(RESERVED_DESCRIPTORS + 188):
            stack.enter_context(socket.create_connection(to, timeout=10))
        os.kill(process.pid, signal.SIGCONT)

        with socket.create_connection(to, timeout=10) as client:
            client.sendall(request(f"/r/{key}/v1/models", key=key, method="GET"))
            assert client.recv(12) == b"HTTP/1.1 200"
        errors.seek(0)
        assert b"Too many open files" not in errors.read()


def test_descriptors_are_reserved_for_other_uses_than_connections() -> None:
    room = connection_limit()

    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert soft == resource.RLIM_INFINITY or room <= max(1, soft - RESERVED_DESCRIPTORS)
