"""A large body is parsed like a small one, in a separate process and in its session's turn."""

import asyncio
import json
import os
import signal
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from rollcall.consumers.environments.gateway.body_budget import ByteRate
from rollcall.consumers.environments.gateway.exchange import LARGE_BYTES
from rollcall.consumers.environments.gateway.gateway import DIALECTS
from rollcall.consumers.environments.gateway.large_bodies import LargeBodies
from rollcall.inference.dialects.dialect import Conversations, Declined, ParsedRequest
from rollcall.schemas.messages import Message
from tests.support.fuzzed_bodies import BODIES, EARLIER

PAD = "p" * LARGE_BYTES
WHOLE = {**BODIES, "/v1/step": {"action": PAD}, "/v1/finish": {"result": PAD}}


def on_a_loop(work: Callable[[LargeBodies], Awaitable[None]], **options: Any) -> None:
    async def scene() -> None:
        large = LargeBodies(**options)
        try:
            await work(large)
        finally:
            await large.close()

    asyncio.run(asyncio.wait_for(scene(), 60))


async def read(
    large: LargeBodies, path: str, value: Any, earlier: Conversations, session: str = "s"
) -> ParsedRequest:
    body = bytearray(json.dumps(value).encode())
    return await large.read(session, DIALECTS[path], body, ["policy"], earlier, lambda: False)


def test_a_large_body_is_parsed_or_refused_like_a_small_one() -> None:
    async def work(large: LargeBodies) -> None:
        for number, (path, value) in enumerate(WHOLE.items()):
            wanted = DIALECTS[path].read(json.dumps(value).encode(), ["policy"], EARLIER)
            found = await read(large, path, value | {"pad": PAD}, EARLIER, str(number))
            assert (found.request, found.request.d, found.stream, found.turns) == (
                wanted.request,
                wanted.request.d,
                wanted.stream,
                wanted.turns,
            )
        with pytest.raises(Declined, match="max_tokens must be an integer") as refused:
            await read(large, "/v1/messages", BODIES["/v1/messages"] | {"max_tokens": "x"}, {}, "t")
        assert (refused.value.status, refused.value.param) == (400, "max_tokens")

    on_a_loop(work)


def test_a_large_body_may_continue_only_its_own_sessions_responses() -> None:
    said = {"resp_1": [Message("user", "x"), Message("assistant", "y")]}
    value = {"input": PAD, "previous_response_id": "resp_1"}

    async def work(large: LargeBodies) -> None:
        found = await read(large, "/v1/responses", value, said)
        assert found.request.messages == (*said["resp_1"], Message("user", PAD))
        with pytest.raises(Declined, match="'resp_1' not found"):
            await read(large, "/v1/responses", value, {}, "other")

    on_a_loop(work)


def test_the_number_of_responses_referenced_by_one_body_is_bounded() -> None:
    items = [{"type": "item_reference", "id": f"msg_{number}"} for number in range(100)]
    known = {f"resp_{number}": [Message("assistant", "y")] for number in range(100)}

    async def work(large: LargeBodies) -> None:
        with pytest.raises(Declined, match="may refer to 64 responses; send their items"):
            await read(large, "/v1/responses", {"input": items}, known)

    on_a_loop(work)


def test_a_body_that_kills_its_reader_is_refused_and_the_next_read() -> None:
    async def work(large: LargeBodies) -> None:
        asking = asyncio.create_task(read(large, "/v1/step", {"action": PAD}, {}))
        while large.pid is None:
            await asyncio.sleep(0.001)
        os.kill(large.pid, signal.SIGKILL)
        with pytest.raises(Declined, match="too much memory, to be read; send a smaller one"):
            await asking
        assert (await read(large, "/v1/step", {"action": PAD}, {}, "t")).request.text == PAD

    on_a_loop(work)


def test_a_body_that_takes_too_long_to_read_is_refused() -> None:
    async def work(large: LargeBodies) -> None:
        with pytest.raises(Declined, match=r"takes more than 0\.001 s") as refused:
            await read(large, "/v1/step", {"action": PAD}, {})
        assert refused.value.status == 413

    on_a_loop(work, within_s=0.001)


def test_a_body_of_a_disconnected_client_is_not_read() -> None:
    async def work(large: LargeBodies) -> None:
        body = bytearray(b"{}")
        with pytest.raises(ConnectionError, match="gone before its body was read"):
            await large.read("s", DIALECTS["/v1/step"], body, [], {}, lambda: True)
        assert large.pid is None

    on_a_loop(work)


def test_a_sender_above_its_byte_rate_waits_a_rested_one_does_not() -> None:
    async def scene() -> float:
        rate = ByteRate(bytes_per_s=1000, burst_bytes=500)
        loop = asyncio.get_running_loop()
        begun = loop.time()
        await rate.wait_after(500)
        assert loop.time() - begun < 0.05
        await rate.wait_after(100)
        return loop.time() - begun

    assert asyncio.run(scene()) >= 0.09
