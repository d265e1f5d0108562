"""Services of a worker for its async sessions: a gateway on demand, processes, objects."""

import asyncio
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from rollcall.consumers.environments.gateway.listening_socket import bind
from rollcall.consumers.environments.worker_hosts import WorkerHosts
from rollcall.consumers.loop.event_loop_thread import EventLoopThread
from rollcall.sandbox.agents.agent_processes import AgentProcesses
from rollcall.sandbox.host import AgentEndpoint, Host
from rollcall.schemas.errors import Refused, Unavailable
from rollcall.schemas.objects import ObjectStore
from tests.support.raw_http import exchange, request
from tests.support.waiting import holds


class Ports:
    """Notes every port that is opened."""

    def __init__(self) -> None:
        self.opened: list[int] = []

    def __call__(self) -> socket.socket:
        listener = bind()
        self.opened.append(listener.getsockname()[1])
        return listener


@pytest.fixture
def ports() -> Ports:
    return Ports()


@pytest.fixture
def loop_thread() -> Iterator[EventLoopThread]:
    loop_thread = EventLoopThread(threaded=True)
    yield loop_thread
    loop_thread.close()


@pytest.fixture
def hosts(loop_thread: EventLoopThread, ports: Ports, tmp_path: Path) -> WorkerHosts:
    return WorkerHosts(
        loop_thread,
        listen=ports,
        processes=lambda: AgentProcesses(tmp_path / "home", tmp_path / "scratch"),
        objects=ObjectStore(str(tmp_path / "objects")),
    )


def in_loop(loop_thread: EventLoopThread, endpoints: list[AgentEndpoint], host: Host) -> None:
    async def draw() -> None:
        endpoints.append(await host.open_endpoint(["policy"], {"prompt": "x"}))

    loop_thread.call(lambda: None)
    assert loop_thread.run(draw, 30)


def test_all_sessions_share_one_gateway_opened_with_the_first_endpoint(
    loop_thread: EventLoopThread, ports: Ports, hosts: WorkerHosts
) -> None:
    endpoints: list[AgentEndpoint] = []
    first, second = hosts("first"), hosts("second")
    assert ports.opened == []

    in_loop(loop_thread, endpoints, first)
    in_loop(loop_thread, endpoints, second)

    assert len(ports.opened) == 1
    assert endpoints[0].key != endpoints[1].key
    for endpoint in endpoints:
        path = endpoint.url.partition("/r/")[2]
        data = request(f"/r/{path}/v1/models", method="GET", key=endpoint.key)
        assert asyncio.run(exchange(ports.opened[0], data)).status == 200


def test_the_gateway_ends_with_the_event_loop_thread(
    loop_thread: EventLoopThread, ports: Ports, hosts: WorkerHosts
) -> None:
    in_loop(loop_thread, [], hosts("somewhere"))
    loop_thread.close()

    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", ports.opened[0]))


def test_a_configured_port_is_served_before_any_session(ports: Ports, hosts: WorkerHosts) -> None:
    hosts.serve()

    async def answered() -> int:
        await holds(lambda: bool(ports.opened))
        return (await exchange(ports.opened[0], request("/", method="GET"))).status

    assert asyncio.run(answered()) == 404


def test_a_gateway_without_a_port_is_retried(loop_thread: EventLoopThread, tmp_path: Path) -> None:
    tries = iter([Refused("no port"), bind()])

    def listen() -> socket.socket:
        found = next(tries)
        if isinstance(found, Refused):
            raise found
        return found

    hosts = WorkerHosts(
        loop_thread, listen=listen, processes=lambda: AgentProcesses(tmp_path / "home", tmp_path)
    )
    endpoints: list[AgentEndpoint] = []
    with pytest.raises(Refused, match="no port"):
        in_loop(loop_thread, endpoints, hosts("somewhere"))
    in_loop(loop_thread, endpoints, hosts("somewhere"))

    assert len(endpoints) == 1


def test_kept_session_files_lie_in_the_object_store(hosts: WorkerHosts, tmp_path: Path) -> None:
    name = hosts("somewhere").keep("output.txt", b"words")

    [stored] = (tmp_path / "objects").glob(f"*/{name}")
    assert stored.read_bytes() == b"words"


def test_keeping_a_file_without_a_store_is_refused(
    loop_thread: EventLoopThread, tmp_path: Path
) -> None:
    hosts = WorkerHosts(
        loop_thread, listen=bind, processes=lambda: AgentProcesses(tmp_path, tmp_path)
    )

    with pytest.raises(Unavailable, match=r"output.txt of somewhere .* objects.url"):
        hosts("somewhere").keep("output.txt", b"words")
