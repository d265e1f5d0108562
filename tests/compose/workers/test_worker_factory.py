"""How an environments worker comes to a gateway: by settings, or when a session needs one."""

import asyncio
import socket
from functools import partial

import pytest

from rollcall.compose.settings import EnvironmentsSettings, Settings
from rollcall.compose.workers.worker_factory import WorkerFactory
from rollcall.consumers.environments.gateway.listening_socket import bind
from rollcall.consumers.loop.event_loop_thread import EventLoopThread
from rollcall.schemas.errors import Refused
from tests.support.memory_cluster import MemoryCluster
from tests.support.raw_http import exchange, request


def worker_factory(port: int) -> WorkerFactory:
    cluster = MemoryCluster()
    settings = Settings(environments=EnvironmentsSettings(gateway_port=port))
    return WorkerFactory(cluster.log, cluster.codec, cluster.topics, settings)


def test_worker_with_a_taken_port_is_refused_in_one_line() -> None:
    with bind() as taken:
        port = taken.getsockname()[1]

        with pytest.raises(Refused, match=f"port {port}") as refused:
            worker_factory(port).environments("environments-1")

    assert "\n" not in str(refused.value)


def test_configured_port_is_served_from_start_to_close() -> None:
    with bind() as free:
        port = free.getsockname()[1]
    factory = worker_factory(port)
    loop = factory.environments("environments-1")

    assert asyncio.run(exchange(port, request("/", method="GET"))).status == 404

    loop.role.close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))


def test_event_loop_threads_of_a_memory_crew_end_with_the_cluster() -> None:
    cluster = MemoryCluster()
    cluster.hire(lambda call: "left")
    _, _, environments, rewards = cluster.log.crew
    loop_threads: list[EventLoopThread] = [
        environments.role.waiting.loop_thread,
        rewards.role.waiting.loop_thread,
    ]  # type: ignore[attr-defined]
    ended: list[EventLoopThread] = []
    for loop_thread in loop_threads:
        loop_thread.at_close(partial(_note, ended, loop_thread))
        loop_thread.call(lambda: None)
    cluster.finish()
    assert ended == []

    del cluster, environments, rewards
    assert ended == loop_threads


async def _note(ended: list[EventLoopThread], room: EventLoopThread) -> None:
    ended.append(room)
