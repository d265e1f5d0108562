"""A gateway with one line, and somebody behind it who answers by a script."""

import asyncio
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from rollcall.consumers.environments.gateway.exchange import GatewayLimits
from rollcall.consumers.environments.gateway.gateway import Gateway
from rollcall.consumers.environments.gateway.line import GatewayLine
from rollcall.consumers.environments.gateway.listener import bind
from rollcall.schemas.agent_requests import AgentRequest, Reply

T = TypeVar("T")
Script = Callable[[AgentRequest], Reply | None]
"""None: the ask waits, until the test answers it."""
TASK = {"prompt": "find the bug", "limits": {"turns": 3}}


@dataclass
class ServedLine:
    """What a test talks to, and what it sees of the other side."""

    gateway: Gateway
    line: GatewayLine
    loop: asyncio.AbstractEventLoop
    requests: list[AgentRequest] = field(default_factory=list)
    """Everything that was asked, each occurrence once."""
    held: Counter[str] = field(default_factory=Counter)
    """By digest, what waits for a reply."""

    def tell(self, reply: Reply) -> None:
        """On the loop of the gateway."""
        self.held[reply.d] -= 1
        self.line.tell(reply)

    @property
    def port(self) -> int:
        return int(self.gateway.address.rpartition(":")[2])

    def path(self, route: str) -> str:
        return f"/r/{self.line.key}{route}"

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """On the loop of the gateway, from another thread."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(60)


@asynccontextmanager
async def serving(
    script: Script, limits: GatewayLimits | None = None, policies: tuple[str, ...] = ("policy",)
) -> AsyncIterator[ServedLine]:
    """Serve a line on this loop, answered by the script."""
    gateway = Gateway(bind(), limits)
    await gateway.start()
    served = ServedLine(gateway, gateway.line(policies, TASK), asyncio.get_running_loop())
    answering = asyncio.create_task(_answer(served, script))
    try:
        yield served
    finally:
        await gateway.close()
        await answering


async def _answer(served: ServedLine, script: Script) -> None:
    while not served.line.over:
        known = Counter(served.held)
        for request in served.line.asked():
            if known[request.d]:
                known[request.d] -= 1
                continue
            served.requests.append(request)
            served.held[request.d] += 1
            if (reply := script(request)) is not None:
                served.tell(reply)
        await served.line.wait(None)


@contextmanager
def serving_beside(script: Script, limits: GatewayLimits | None = None) -> Iterator[ServedLine]:
    """The same on a thread of its own, for clients that block."""
    ready: asyncio.Queue[ServedLine] = asyncio.Queue()
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
