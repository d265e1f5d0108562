"""Agents' own client libraries against the gateway: every dialect, streams, tools, errors.

The clients live in processes of their own, for agents pin either major of openai: this project's
has the newer one, a second environment the older one and litellm. A script behind the
gateway answers as `vendor_clients.py` says, and counts the requests.
"""

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from rollcall.consumers.environments.gateway.exchange import GatewayLimits
from rollcall.schemas.agent_requests import AgentRequest, Choice, ErrorReply, ModelReply, Reply
from rollcall.schemas.tool_calls import ToolCall, tool_calls_text
from tests.support.raw_http import Raw
from tests.support.served_endpoint import ServedEndpoint, serving_beside
from tests.support.vendor_scenarios import ANTHROPIC, LITELLM, OPENAI

ROOT = Path(__file__).parents[4]
SCRIPT = ROOT / "tests" / "support" / "vendor_clients.py"
OLDER = ROOT / ".venv" / "clients" / "bin" / "python"
"""Where `make clients` puts openai 2 and litellm."""
INTERPRETERS = {"openai 3": sys.executable, "anthropic 2": sys.executable, "openai 2": str(OLDER)}
INTERPRETERS["litellm 1"] = str(OLDER)
SLOW_S = 0.2
TOO_LONG = "This model's maximum context length is 8 tokens. However, your messages resulted in 9"
VALUES = [
    (client, scenario, value)
    for client, values in {
        "openai 3": OPENAI,
        "openai 2": OPENAI,
        "anthropic 2": ANTHROPIC,
        "litellm 1": LITELLM,
    }.items()
    for scenario, value in values.items()
]

OPENAI_ERRORS: dict[str, tuple[str, int | None, int]] = {
    "malformed": ("BadRequestError", 400, 0),
    "responses_malformed": ("BadRequestError", 400, 0),
    "many_alternatives": ("BadRequestError", 400, 0),
    "wrong_key": ("AuthenticationError", 401, 0),
    "error 400": ("BadRequestError", 400, 1),
    "error 404": ("NotFoundError", 404, 1),
    "error 429": ("RateLimitError", 429, 3),
    "error 503": ("InternalServerError", 503, 1),
    "responses_error 400": ("BadRequestError", 400, 1),
    "responses_error 404": ("NotFoundError", 404, 1),
    "responses_error 503": ("InternalServerError", 503, 1),
    "late_error": ("APIError", None, 1),
    "responses_late_error": ("APIError", None, 1),
}
"""What is raised, its status, and how often it was asked: more than once if it is tried again."""
ANTHROPIC_ERRORS = {
    "malformed": ("BadRequestError", 400, 0),
    "wrong_key": ("AuthenticationError", 401, 0),
    "error 400": ("BadRequestError", 400, 1),
    "error 404": ("NotFoundError", 404, 1),
    "error 429": ("RateLimitError", 429, 3),
    "error 503": ("ServiceUnavailableError", 503, 1),
    "late_error": ("APIStatusError", 200, 1),
}
LITELLM_ERRORS = {
    "wrong_key": ("AuthenticationError", 401, 0),
    "error 400": ("ContextWindowExceededError", 400, 1),
    "error 404": ("NotFoundError", 404, 1),
    "error 429": ("RateLimitError", 429, 3),
    "error 503": ("ServiceUnavailableError", 503, 1),
}
ERRORS = [
    (client, scenario, *error)
    for client, errors in {
        "openai 3": OPENAI_ERRORS,
        "openai 2": OPENAI_ERRORS,
        "anthropic 2": ANTHROPIC_ERRORS,
        "litellm 1": LITELLM_ERRORS,
    }.items()
    for scenario, error in errors.items()
]


def policy(request: AgentRequest) -> Reply | None:
    """The answer that the last message asks for; None: later."""
    verb, _, words = request.messages[-1].content.partition(" ")
    if verb == "slow":
        return None
    if verb == "error":
        codes = {"400": ("context_length_exceeded", f"{TOO_LONG} tokens.")}
        return ErrorReply(request.d, int(words), *codes.get(words, ("code", "some words")))
    calls = tool_calls_text([ToolCall("call_1_0", *words.split(" ", 1))] if verb == "call" else [])
    tokens = 0 if request.max_tokens == 0 else 2
    finish = "length" if request.max_tokens == 1 else "stop"
    choice = Choice("" if calls else words, finish, calls, tokens, (5, 6), (-0.5, -0.25))
    return ModelReply(request.d, (choice,) * request.n, "0" * 32, 1_700_000_000_000, 3, (1, 2, 3))


class VendorClient:
    """A process with one vendor's client in it, started when it is first needed."""

    def __init__(self, name: str, served: ServedEndpoint) -> None:
        self.name = name
        self.served = served
        self.process: subprocess.Popen[str] | None = None

    def __call__(self, scenario: str) -> dict[str, Any]:
        process = self.process = self.process or self._started()
        assert process.stdin is not None
        assert process.stdout is not None
        print(scenario, file=process.stdin, flush=True)
        line = process.stdout.readline()
        assert line, f"the process of {self.name} ended at {scenario!r}"
        result: dict[str, Any] = json.loads(line)
        return result

    def _started(self) -> subprocess.Popen[str]:
        interpreter = INTERPRETERS[self.name]
        if not Path(interpreter).exists():
            pytest.fail(f"there is no {interpreter}; `make clients` installs it")
        endpoint = self.served.endpoint
        command = [interpreter, str(SCRIPT), self.name.split()[0], endpoint.url, endpoint.key]
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def close(self) -> None:
        if self.process is not None:
            with self.process:
                self.process.kill()


@pytest.fixture(scope="module")
def served() -> Iterator[ServedEndpoint]:
    limits = GatewayLimits(hold_s=SLOW_S / 2, wait_every_s=SLOW_S / 4)
    slow: list[ServedEndpoint] = []

    def script(request: AgentRequest) -> Reply | None:
        reply = policy(request)
        if reply is None:
            asyncio.get_running_loop().call_later(SLOW_S, partial(_tell, slow[0], request))
        return reply

    with serving_beside(script, limits) as served:
        slow.append(served)
        yield served


def _tell(served: ServedEndpoint, request: AgentRequest) -> None:
    last = request.messages[-1].content.removeprefix("slow ")
    reply = policy(AgentRequest("model", (type(request.messages[-1])("user", last),), d=request.d))
    assert reply is not None
    served.answer(reply)


@pytest.fixture(scope="module")
def clients(served: ServedEndpoint) -> Iterator[dict[str, VendorClient]]:
    made = {name: VendorClient(name, served) for name in INTERPRETERS}
    yield made
    for client in made.values():
        client.close()


@pytest.mark.parametrize("client", INTERPRETERS)
def test_the_clients_have_their_pinned_major_versions(
    clients: dict[str, VendorClient], client: str
) -> None:
    major = client.split()[1]

    assert clients[client]("version")["value"].split(".")[0] == major


@pytest.mark.parametrize(("client", "scenario", "value"), VALUES)
def test_a_client_parses_the_answer_into_its_content(
    clients: dict[str, VendorClient], client: str, scenario: str, value: Any
) -> None:
    assert clients[client](scenario) == {"value": value}


@pytest.mark.parametrize(("client", "scenario", "raised", "status", "asked"), ERRORS)
def test_a_client_raises_its_own_error_and_retries_only_if_allowed(
    clients: dict[str, VendorClient],
    served: ServedEndpoint,
    client: str,
    scenario: str,
    raised: str,
    status: int | None,
    asked: int,
) -> None:
    before = len(served.requests)

    found = clients[client](scenario)

    assert (found.get("raised"), found.get("status")) == (raised, status), found
    assert len(served.requests) - before == asked


@pytest.mark.parametrize("cuts", [(0,), (20,), (-1,), (20, -1)])
@pytest.mark.parametrize(
    ("client", "scenario"),
    [("openai 3", "chat_json"), ("openai 2", "responses_json"), ("anthropic 2", "messages_json")],
)
def test_an_answer_cut_by_a_proxy_is_repeated_and_asked_once(
    clients: dict[str, VendorClient],
    served: ServedEndpoint,
    client: str,
    scenario: str,
    cuts: tuple[int, ...],
) -> None:
    with cutting_proxy(served, cuts) as port:
        endpoint = served.endpoint
        clients[client](f"connect http://127.0.0.1:{port}/r/{endpoint.key} {endpoint.key}")
        before = len(served.requests)
        found = clients[client](scenario)
        clients[client](f"connect {endpoint.url} {endpoint.key}")

    assert found["value"][0] == "hello there"
    assert len(served.requests) == before + 1


@contextmanager
def cutting_proxy(served: ServedEndpoint, cuts: tuple[int, ...]) -> Iterator[int]:
    """Forwards requests, and of the first answers only this many bytes; negative: all but those."""
    left = list(cuts)

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length:")[2].split()[0])
        raw = await Raw.to(served.port)
        head = head.replace(b"\r\n", b"\r\nConnection: close\r\n", 1)
        await raw.send(head + await reader.readexactly(length))
        answer = await raw.reader.read()
        writer.write(answer[: left.pop(0)] if left else answer)
        await raw.close()
        writer.close()

    server = served.run(asyncio.start_server(carry, "127.0.0.1", 0))
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        served.loop.call_soon_threadsafe(server.close)
