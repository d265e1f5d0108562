"""Links between clients and servers that can be cut: one TCP proxy for each.

A Kafka client continues with the address that the broker advertises. So each link has its own
listener at the broker, and that listener advertises the link's port: a client stays on its link.

While a direction is cut its bytes are held back and not lost: TCP survives such a cut, as it does
on a network. A dropped link also resets its connections.
"""

import asyncio
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

CHUNK = 65_536
HOST = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class Ports:
    """The port for a link's clients, and the port at which broker or registry listens for it."""

    entry: int
    broker: int


def listeners(plain: int, controller: int, links: Mapping[str, Ports]) -> dict[str, str]:
    """Return broker properties that add a listener for every link."""
    names = [f"LINK{number}" for number in range(len(links))]
    bound = {"PLAINTEXT": plain, "CONTROLLER": controller}
    bound |= {name: link.broker for name, link in zip(names, links.values(), strict=True)}
    advertised = {"PLAINTEXT": plain}
    advertised |= {name: link.entry for name, link in zip(names, links.values(), strict=True)}
    return {
        "listeners": _spelt(bound),
        "advertised.listeners": _spelt(advertised),
        "listener.security.protocol.map": ",".join(f"{name}:PLAINTEXT" for name in bound),
        "inter.broker.listener.name": "PLAINTEXT",
        "controller.quorum.bootstrap.servers": f"{HOST}:{controller}",
    }


def _spelt(addresses: Mapping[str, int]) -> str:
    return ",".join(f"{name}://{HOST}:{port}" for name, port in addresses.items())


@dataclass
class Link:
    """One client's connection path to a server; it lives on the proxy's event loop."""

    ports: Ports
    detour: int | None = None
    """The port to which the link leads instead."""
    to_broker: asyncio.Event = field(default_factory=asyncio.Event)
    to_client: asyncio.Event = field(default_factory=asyncio.Event)
    connections: set[asyncio.Task[None]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.to_broker.set()
        self.to_client.set()

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Forward one connection until either side, or a drop, ends it."""
        task = asyncio.current_task()
        assert task is not None
        self.connections.add(task)
        writers = [writer]
        try:
            await self.to_broker.wait()
            far_reader, far_writer = await asyncio.open_connection(
                HOST, self.detour or self.ports.broker
            )
            writers.append(far_writer)
            pumps = [
                asyncio.ensure_future(_pump(reader, far_writer, self.to_broker)),
                asyncio.ensure_future(_pump(far_reader, writer, self.to_client)),
            ]
            try:
                await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for pump in pumps:
                    pump.cancel()
                await asyncio.gather(*pumps, return_exceptions=True)
        except (OSError, asyncio.CancelledError):
            pass  # the broker is down, or the link was dropped: the client sees a closed socket
        finally:
            self.connections.discard(task)
            for each in writers:
                each.transport.abort()

    def drop(self) -> None:
        """Reset every connection."""
        for task in list(self.connections):
            task.cancel()


async def _pump(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, gate: asyncio.Event
) -> None:
    while chunk := await reader.read(CHUNK):
        await gate.wait()
        writer.write(chunk)
        await writer.drain()


class Proxy:
    """All links, on one event loop in a separate thread; all methods are thread-safe."""

    def __init__(self, ports: Mapping[str, Ports]) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self._thread.start()
        self._links: dict[str, Link] = {}
        self._servers: list[asyncio.Server] = []
        self.open(ports)

    def open(self, ports: Mapping[str, Ports]) -> None:
        """Add links."""
        self._do(self._open(ports))

    def address(self, name: str) -> str:
        """Return the bootstrap address for the link's client."""
        return f"{HOST}:{self._links[name].ports.entry}"

    def cut(self, name: str, *, to_broker: bool = True, to_client: bool = True) -> None:
        """Hold back the bytes in these directions."""
        link = self._links[name]
        if to_broker:
            self._call(link.to_broker.clear)
        if to_client:
            self._call(link.to_client.clear)

    def heal(self, name: str) -> None:
        """Forward everything again, including the held-back bytes."""
        link = self._links[name]
        self._call(link.to_broker.set)
        self._call(link.to_client.set)

    def drop(self, name: str) -> None:
        """Reset the link's connections; new ones are accepted."""
        self._call(self._links[name].drop)

    def lead(self, name: str, port: int | None) -> None:
        """Redirect a link to another port, or with None to its own; its connections are reset."""
        self._links[name].detour = port
        self.drop(name)

    def close(self) -> None:
        if self._loop.is_closed():
            return
        self._do(self._shut())
        self._call(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    async def _open(self, ports: Mapping[str, Ports]) -> None:
        for name, link_ports in ports.items():
            link = self._links[name] = Link(link_ports)
            server = await asyncio.start_server(link.accept, HOST, link_ports.entry)
            self._servers.append(server)

    async def _shut(self) -> None:
        for server in self._servers:
            server.close()
        tasks = [task for link in self._links.values() for task in link.connections]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(0)  # aborted transports are closed in the loop's next turn

    def _call(self, function: Callable[[], object]) -> None:
        self._loop.call_soon_threadsafe(function)

    def _do(self, coroutine: Any) -> None:
        asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(30)
