"""Beside a hostile session another one is answered correctly, and no memory stays held."""

import asyncio

from rollcall.compose.benchmarks.hostile_clients import BODIES, MIB, HostileClients
from rollcall.compose.benchmarks.hostile_session import HonestSession, one_gateway
from tests.support.waiting import until

SECONDS = 3.0


def test_a_hostile_session_changes_no_answer_and_leaves_nothing_behind() -> None:
    with one_gateway() as gateway:
        hostile = HostileClients(gateway.port, gateway.keys[1], 27, (20_000, 200_000, MIB), 0.3)
        honest = HonestSession(gateway)

        async def side_by_side() -> None:
            await asyncio.gather(hostile.run(SECONDS), honest.run(SECONDS))

        asyncio.run(side_by_side())

        assert len(honest.took) == 4 * int(SECONDS / 0.04)
        assert len(set(hostile.done) & set(BODIES)) >= 4
        assert {"silent", "broken_body", "no_http"} <= set(hostile.done)
        gateway.renew()
        until(lambda: not any(gateway.held().values()), 30, lambda: f"held are {gateway.held()}")
