"""A client that vanishes at any stage of a request, in any way, leaves nothing in the gateway."""

import gzip
import os
import signal
import socket
import struct
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager

import pytest

from rollcall.consumers.environments.gateway.connection import Connection
from rollcall.consumers.environments.gateway.exchange import LARGE_BYTES, GatewayLimits
from rollcall.schemas.agent_requests import AgentRequest, Choice, ModelReply, Reply, StepReply
from tests.support.raw_http import request
from tests.support.served_endpoint import ServedEndpoint, serving_beside
from tests.support.waiting import until

CHAT = "/v1/chat/completions"
PART = 500_000
CHUNKS = 1000
LARGE = {"action": "p" * (LARGE_BYTES + 1)}
MUCH = "y" * 16 * 1024 * 1024
"""More than a connection takes that is not read from."""
REST_S = 300.0
DEADLINE_S = 10.0
PATIENT = GatewayLimits(first_request_s=300.0)
"""A head that does not come is a matter of other tests."""


def replied(call: AgentRequest) -> Reply | None:
    """Leave the calls that say "wait" open."""
    if call.kind != "model":
        return StepReply(call.d, "done")
    said = call.messages[-1].content
    return None if said == "wait" else ModelReply(call.d, (Choice(MUCH),))


def asked(served: ServedEndpoint, path: str, body: object, **headers: str) -> bytes:
    return request(served.path(path), body, key=served.endpoint.key, **headers)


def chat(served: ServedEndpoint, said: str) -> bytes:
    return asked(served, CHAT, {"messages": [{"role": "user", "content": said}]})


def in_chunks(served: ServedEndpoint) -> bytes:
    head = asked(served, CHAT, b"", Transfer_Encoding="chunked")
    return head.replace(b"Content-Length: 0\r\n", b"") + b"1\r\nx\r\n" * CHUNKS


def in_a_packed_body(served: ServedEndpoint) -> bytes:
    body = gzip.compress(bytes(PART))
    return asked(served, CHAT, body, Content_Encoding="gzip")[:-8]


STAGES: Mapping[str, Callable[[ServedEndpoint], bytes]] = {
    "no_request": lambda served: b"",
    "in_a_head": lambda served: chat(served, "wait")[:50],
    "in_a_body": lambda served: asked(served, CHAT, b"x" * 2 * PART)[:-PART],
    "in_chunks": in_chunks,
    "in_a_packed_body": in_a_packed_body,
    "a_large_body_waits_for_its_turn": lambda served: asked(served, "/v1/step", LARGE),
    "a_call_waits": lambda served: chat(served, "wait"),
    "requests_wait_behind_a_call": lambda served: (
        chat(served, "wait") + 100 * asked(served, "/v1/models", method="GET", body=None)
    ),
    "an_answer_is_not_read": lambda served: chat(served, "much"),
}
"""What a client has sent when it vanishes."""


def reset(client: socket.socket) -> None:
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()


WAYS: Mapping[str, Callable[[socket.socket], None]] = {
    "closes": socket.socket.close,
    "resets": reset,
    "half_closes": lambda client: client.shutdown(socket.SHUT_WR),
}


@contextmanager
def reader_stopped(served: ServedEndpoint) -> Iterator[None]:
    """Suspend the process that reads large bodies while it reads one."""
    until(lambda: served.gateway.large.pid is not None, DEADLINE_S, lambda: "there is no process")
    pid = served.gateway.large.pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def rest_all(served: ServedEndpoint) -> None:
    for each in served.gateway.connections():
        assert isinstance(each, Connection)
        each.pause(REST_S)


def state(served: ServedEndpoint) -> tuple[int, int, int]:
    """Connections, the clients that wait for a reply, and bytes of bodies."""
    gateway = served.gateway
    return len(gateway.connections()), served.endpoint.waiting_clients(), gateway.budget.held


def with_key(served: ServedEndpoint) -> int:
    """Connections that belong to the session."""
    return len(served.endpoint.share.connections)


@pytest.mark.parametrize("resting", [False, True], ids=["read_from", "resting"])
def test_vanished_clients_leave_no_state(resting: bool) -> None:
    with serving_beside(replied, PATIENT) as served, ExitStack() as stack:

        def come(sent: bytes) -> socket.socket:
            client = socket.create_connection(("127.0.0.1", served.port), timeout=DEADLINE_S)
            stack.callback(client.close)
            client.sendall(sent)
            return client

        large = asked(served, "/v1/step", LARGE)
        held = len(large.partition(b"\r\n\r\n")[2])
        living = come(large)
        with reader_stopped(served):
            vanishing = [
                (vanish, come(sent(served))) for sent in STAGES.values() for vanish in WAYS.values()
            ]
            bodies = 2 * PART + CHUNKS + held
            # Bytes that are still on their way would keep the end of a connection behind them.
            whole = (len(vanishing) + 1, 2 * len(WAYS), held + len(WAYS) * bodies)
            until(
                lambda: state(served) == whole,
                DEADLINE_S,
                lambda: f"have come {state(served)} of {whole}",
            )
            if resting:
                served.loop.call_soon_threadsafe(rest_all, served)

            for vanish, client in vanishing:
                vanish(client)

            until(
                lambda: state(served) == (1, 0, held), DEADLINE_S, lambda: f"held {state(served)}"
            )

        assert living.recv(100).startswith(b"HTTP/1.1 200")
        living.close()
        assert served.gateway.open_calls.count == 2 * len(WAYS), "hanging up cancels no call"
        served.run(served.endpoint.close())
        until(
            lambda: (*state(served), served.gateway.open_calls.count) == (0, 0, 0, 0),
            DEADLINE_S,
            lambda: f"held {state(served)} in the end",
        )


@pytest.mark.parametrize("resting", [False, True], ids=["read_from", "resting"])
def test_a_closed_session_leaves_no_state_despite_connected_clients(
    resting: bool,
) -> None:
    with serving_beside(replied, PATIENT) as served, ExitStack() as stack:
        for sent in STAGES.values():
            client = socket.create_connection(("127.0.0.1", served.port), timeout=DEADLINE_S)
            stack.callback(client.close)
            client.sendall(sent(served))
        without_key = 2
        until(
            lambda: with_key(served) == len(STAGES) - without_key and state(served)[1] == 2,
            DEADLINE_S,
            lambda: f"have come {with_key(served)} with a key, {state(served)}",
        )
        if resting:
            served.loop.call_soon_threadsafe(rest_all, served)

        served.run(served.endpoint.close())

        until(lambda: state(served) == (without_key, 0, 0), DEADLINE_S, lambda: f"{state(served)}")
        assert served.gateway.open_calls.count == 0
