"""A gateway with two sessions, whose model answers at once with the last message.

    python -m rollcall.compose.benchmarks.one_gateway

Prints a line of JSON with its port and both keys; then for each line on standard input another,
with its held bytes, or for the line "next" with the key of a new second session, after the earlier
one is closed. Ends with its input.
"""

import asyncio
import gc
import sys

import orjson

from rollcall.compose.agents.scripted_model import answer_requests
from rollcall.compose.log_setup import set_up
from rollcall.consumers.environments.gateway.gateway import Gateway
from rollcall.consumers.environments.gateway.listening_socket import bind
from rollcall.consumers.loop.loop import GC_THRESHOLDS
from rollcall.schemas.agent_requests import (
    AgentRequest,
    Choice,
    ErrorReply,
    ModelReply,
    Reply,
    StepReply,
)

POLICY = "bench"
MOST_SAID = 1000


def replied(request: AgentRequest) -> Reply:
    """Return the last message of a model request; for others, the beginning of their text."""
    if request.kind != "model":
        return StepReply(request.d, request.text[:MOST_SAID])
    if len(request.messages[-1].content) > MOST_SAID:
        return ErrorReply(request.d, 400, "too_long", "the prompt is too long")
    return ModelReply(request.d, (Choice(request.messages[-1].content),) * request.n)


async def serve() -> None:
    """Serve both sessions until the input ends."""
    gateway = Gateway(bind())
    await gateway.start()
    endpoints = [gateway.open_endpoint([POLICY], {}) for _ in range(2)]
    answering = [asyncio.create_task(answer_requests(endpoint, replied)) for endpoint in endpoints]
    port = int(gateway.address.rpartition(":")[2])
    _say({"port": port, "keys": [endpoint.key for endpoint in endpoints]})
    while order := await asyncio.to_thread(sys.stdin.readline):
        if order.strip() == "next":
            await endpoints.pop().close()
            endpoints.append(gateway.open_endpoint([POLICY], {}))
            answering.append(asyncio.create_task(answer_requests(endpoints[-1], replied)))
            _say({"key": endpoints[-1].key})
            continue
        _say(
            {
                "bytes": gateway.budget.held,
                "calls": gateway.open_calls.count,
                "connections": len(gateway.connections()),
            }
        )
    await gateway.close()
    await asyncio.gather(*answering)


def _say(value: object) -> None:
    print(orjson.dumps(value).decode(), flush=True)


if __name__ == "__main__":
    set_up("gateway", "gateway")
    gc.set_threshold(*GC_THRESHOLDS)  # as in a worker
    asyncio.run(serve())
