"""A gateway with one endpoint, whose requests a script answers."""

import asyncio
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from rollcall.consumers.environments.gateway.endpoint import GatewayEndpoint
from rollcall.consumers.environments.gateway.exchange import GatewayLimits
from rollcall.consumers.environments.gateway.gateway import Gateway
from rollcall.consumers.environments.gateway.listening_socket import bind
from rollcall.schemas.agent_requests import AgentRequest, Reply

T = TypeVar("T")
Script = Callable[[AgentRequest], Reply | None]
"""None: the request waits until the test answers it."""
TASK = {"prompt": "find the bug", "limits": {"turns": 3}}


@dataclass
class ServedEndpoint:
    """What a test talks to, and what it sees of the other side."""

    gateway: Gateway
    endpoint: GatewayEndpoint
    loop: asyncio.AbstractEventLoop
    requests: list[AgentRequest] = field(default_factory=list)
    """All requests so far, each occurrence once."""
    held: Counter[str] = field(default_factory=Counter)
    """By digest, what waits for a reply."""

    def answer(self, reply: Reply) -> None:
        """On the loop of the gateway."""
        self.held[reply.d] -= 1
        self.endpoint.answer(reply)

    @property
    def port(self) -> int:
        return int(self.gateway.address.rpartition(":")[2])

    def path(self, route: str) -> str:
        return f"/r/{self.endpoint.key}{route}"

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """On the loop of the gateway, from another thread."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(60)


@asynccontextmanager
async def serving(
    script: Script, limits: GatewayLimits | None = None, policies: tuple[str, ...] = ("policy",)
) -> AsyncIterator[ServedEndpoint]:
    """Serve an endpoint on this loop, answered by the script."""
    gateway = Gateway(bind(), limits)
    await gateway.start()
    served = ServedEndpoint(
        gateway, gateway.open_endpoint(policies, TASK), asyncio.get_running_loop()
    )
    answering = asyncio.create_task(_answer(served, script))
    try:
        yield served
    finally:
        await gateway.close()
        await answering


async def _answer(served: ServedEndpoint, script: Script) -> None:
    while not served.endpoint.closed:
        known = Counter(served.held)
        for request in served.endpoint.open_requests():
            if known[request.d]:
                known[request.d] -= 1
                continue
            served.requests.append(request)
            served.held[request.d] += 1
            if (reply := script(request)) is not None:
                served.answer(reply)
        await served.endpoint.wait(None)


@contextmanager
def serving_beside(script: Script, limits: GatewayLimits | None = None) -> Iterator[ServedEndpoint]:
    """The same on a thread of its own, for clients that block."""
    ready: asyncio.Queue[ServedEndpoint] = asyncio.Queue()
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="gateway")
    thread.start()
    over = asyncio.Event()

    async def live() -> None:
        async with serving(script, limits) as served:
            await ready.put(served)
            await over.wait()

    living = asyncio.run_coroutine_threadsafe(live(), loop)
    try:
        yield asyncio.run_coroutine_threadsafe(ready.get(), loop).result(60)
    finally:
        loop.call_soon_threadsafe(over.set)
        living.result(60)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(60)
        loop.close()
