"""The HTTP server through which agents' processes reach their sessions: keys, routes, limits.

It runs in the environments worker, on the event loop of its event loop. A session opens a line;
only the key of that line, in the path and as the caller's credential, gives access to it. A line
may have a door of its own, a socket that listens in a box: then it is served there and nowhere
else, and no other line is. One request is one call of the line (`line.py` defines when it is a
retry instead); `exchange.py` parses and answers it.
"""

import asyncio
import hmac
import secrets
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import cast

import orjson
from aiohttp import web
from aiohttp.web_request import BaseRequest

from rollcall.consumers.environments.gateway.adapter_dialect import ADAPTER_ROUTES
from rollcall.consumers.environments.gateway.body_budget import BodyBudget
from rollcall.consumers.environments.gateway.connection import Connection, Door
from rollcall.consumers.environments.gateway.descriptors import room_for_connections
from rollcall.consumers.environments.gateway.exchange import (
    SAID_CHARS,
    Exchange,
    GatewayLimits,
    over,
    response_of,
)
from rollcall.consumers.environments.gateway.large_bodies import LargeBodies
from rollcall.consumers.environments.gateway.line import GatewayLine, OpenCalls, TooManyOpen
from rollcall.consumers.environments.gateway.listener import address_of
from rollcall.inference.dialects.dialect import Declined, ParsedRequest
from rollcall.inference.dialects.routes import (
    JSON,
    ROUTES,
    HttpAnswer,
    dialect_of,
    error_answer,
    models_body,
)
from rollcall.schemas.untrusted_text import clean_text

DIALECTS = {**ROUTES, **ADAPTER_ROUTES}
"""The dialect of each path that takes POST."""
PROBES = frozenset({"", "/", "/api/hello"})
"""The paths of HEAD by which clients check that their base URL answers; they send no key there."""
LEAVE_S = 5.0
"""Time in which the rest of the body of a declined request is read."""


@dataclass(frozen=True, slots=True)
class SeenRequest:
    """A request that the gateway has parsed, or declined."""

    method: str
    path: str
    """The path behind the base URL; the whole path of a request that is not below one."""
    asked: ParsedRequest | None = None
    """The parsed request; None if it was declined."""
    declined: Declined | None = None


def _ignore(_: SeenRequest) -> None:
    pass


class Gateway:
    """Serves the lines of one worker, on the event loop on which `start` is awaited."""

    def __init__(
        self,
        listener: socket.socket,
        limits: GatewayLimits | None = None,
        observe: Callable[[SeenRequest], None] = _ignore,
    ) -> None:
        """Take over the listener; `observe` is called with each call and each refusal."""
        self._observe = observe
        self.limits = limits or GatewayLimits()
        self.open_calls = OpenCalls(self.limits.open_calls, self.limits.open_calls_of_session)
        self.address = address_of(listener)
        """The URL for processes of this machine."""
        limits = self.limits
        self.budget = BodyBudget(
            limits.bodies_bytes, limits.bodies_of_session_bytes, limits.retry_after_s
        )
        self.large = LargeBodies()
        self._listener = listener
        self._lines: dict[str, GatewayLine] = {}
        self._door: Door | None = None
        self._doors: dict[str, Door] = {}
        """The doors of lines that have one of their own, by key."""
        self._closing: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Take requests from now on."""
        serve = partial(self._serve, "")
        most = min(self.limits.connections, room_for_connections())
        self._door = await Door.open(
            self._listener, serve, self._complain, most, self.limits.first_request_s
        )

    async def close(self) -> None:
        """End all lines and connections, and stop listening. May be called twice."""
        for line in tuple(self._lines.values()):
            await line.close()
        while self._closing:
            await asyncio.wait(self._closing)
        if self._door is not None:
            await self._door.close()
        await self.large.close()
        self._listener.close()

    def connections(self) -> list[web.RequestHandler]:
        """Return the open connections of the common door."""
        return self._door.connections() if self._door is not None else []

    def line(self, policies: Sequence[str], task: Mapping[str, object]) -> GatewayLine:
        """Open a line with a new key, on which these policies can be asked for."""
        return self._drawn(self.address, policies, task)

    async def line_within(
        self, policies: Sequence[str], task: Mapping[str, object], listener: socket.socket
    ) -> GatewayLine:
        """Open a line that is served on this socket alone, which it takes over."""
        line = self._drawn(address_of(listener), policies, task)
        most = self.limits.connections_of_session
        serve = partial(self._serve, line.key)
        self._doors[line.key] = await Door.open(
            listener, serve, self._complain, most, self.limits.first_request_s
        )
        return line

    def _drawn(
        self, address: str, policies: Sequence[str], task: Mapping[str, object]
    ) -> GatewayLine:
        key = secrets.token_urlsafe(24)
        url = f"{address}/r/{key}"
        line = GatewayLine(url, key, policies, task, self.open_calls, self._forget)
        self._lines[key] = line
        return line

    def _forget(self, line: GatewayLine) -> None:
        self._lines.pop(line.key, None)
        self.large.forget(line.key)
        self.budget.forget(line.key)
        for connection in line.share.connections:
            connection.end_soon()
        door = self._doors.pop(line.key, None)
        if door is not None:
            door.stop()
            closing = asyncio.create_task(door.close(), name="door of a line")
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)

    async def _serve(self, door: str, request: BaseRequest) -> web.StreamResponse:
        connection = cast(Connection, request.protocol)
        if connection.client is not None:  # a further request proves that the last answer arrived
            connection.client.settle()
        connection.client = None
        response = await self._answer_or_decline(door, request, connection)
        if not response.prepared and _leaves_rubbish(request):
            response.force_close()
        elif not response.prepared and not request.content.is_eof():
            await self._leave(request, response)
        return response

    async def _leave(self, request: BaseRequest, response: web.StreamResponse) -> None:
        """Answer before the whole body has arrived; read some of the rest, so that the client reads
        the answer. aiohttp itself would read all of it, without a limit of rate."""
        key, _ = _place(request)
        rate = self.budget.rate(key if key in self._lines else "")
        response.force_close()
        await response.prepare(request)
        await response.write_eof()
        with suppress(TimeoutError, web.RequestPayloadError):
            async with asyncio.timeout(LEAVE_S):
                async for data in request.content.iter_any():
                    await rate.taken(len(data))

    async def _answer_or_decline(
        self, door: str, request: BaseRequest, connection: Connection
    ) -> web.StreamResponse:
        try:
            return await self._answer(door, request, connection)
        except TooManyOpen as error:
            retry_after_s = self.limits.retry_after_s
            declined = Declined(429, "rate_limit_exceeded", str(error), retry_after_s=retry_after_s)
            response = self._decline(request, declined)
            response.force_close()  # thousands may come at once, and connections are few
            return response
        except Declined as declined:
            return self._decline(request, declined)

    async def _answer(
        self, door: str, request: BaseRequest, connection: Connection
    ) -> web.StreamResponse:
        """Answer a request. Raises Declined, TooManyOpen; ConnectionError if the client leaves."""
        key, path = _place(request)
        if request.method == "POST" and path in DIALECTS:
            line = self._line(door, request, key)
            self._belong(connection, line)
            exchange = Exchange(
                request, connection, line, DIALECTS[path], self.limits, self.budget, self.large
            )
            return await exchange.answer(await self._read(exchange, path))
        if request.method == "GET" and path in DOCUMENTS:
            line = self._line(door, request, key)
            self._belong(connection, line)
            return response_of(HttpAnswer(200, {"Content-Type": JSON}, DOCUMENTS[path](line)))
        if (
            request.method == "HEAD"
            and path in PROBES
            and self._is_at(door, key)
            and key in self._lines
        ):
            return web.Response()
        msg = f"{request.method} {path or request.path}: there is no such route"
        raise Declined(404, "not_found", clean_text(msg))

    async def _read(self, exchange: Exchange, path: str) -> ParsedRequest:
        """Parse a request and show it to the observer. Raises Declined."""
        asked = await exchange.read()
        self._observe(SeenRequest("POST", path, asked))
        return asked

    def _decline(self, request: BaseRequest, declined: Declined) -> web.Response:
        """Return the refusal in the form of the path's dialect, whether or not its key is valid."""
        key, path = _place(request)
        seen = path or ("/" if key else request.path)
        self._observe(SeenRequest(request.method, clean_text(seen, SAID_CHARS), declined=declined))
        return response_of(error_answer(dialect_of(path), declined))

    def _complain(self, request: BaseRequest, status: int, message: str) -> web.Response:
        code = "invalid_request_error" if status < 500 else "internal_error"
        return self._decline(request, Declined(status, code, clean_text(message, SAID_CHARS)))

    def _belong(self, connection: Connection, line: GatewayLine) -> None:
        """Assign the connection to a line. Raises TooManyOpen."""
        connection.belong(line.share, self.limits.connections_of_session)

    def _line(self, door: str, request: BaseRequest, key: str) -> GatewayLine:
        """Return the line that a request may use. Raises Declined: 401 or 404.

        `door` is the key of the one line behind the socket of the request; it is empty for the
        common port of all lines without a door.
        """
        given = _credential(request).encode("utf-8", "surrogateescape")
        if not hmac.compare_digest(given, key.encode()):
            raise Declined(401, "invalid_api_key", "the request's key is not that of its URL")
        if not self._is_at(door, key):
            raise Declined(401, "invalid_api_key", "the key is that of a line with another door")
        line = self._lines.get(key)
        if line is None:
            raise over()
        return line

    def _is_at(self, door: str, key: str) -> bool:
        """Return False if the key's line, if there is one, is served at another door."""
        return key == door if door else key not in self._doors


DOCUMENTS: Mapping[str, Callable[[GatewayLine], bytes]] = {
    "/v1/models": lambda line: models_body(line.policies),
    "/v1/task": lambda line: orjson.dumps(line.task),
}
"""The documents that GET returns, by path."""


def _place(request: BaseRequest) -> tuple[str, str]:
    """Split /r/KEY or /r/KEY/PATH into key and path; return two empty strings for other paths."""
    parts = request.rel_url.raw_path.split("/", 3)
    if len(parts) >= 3 and parts[:2] == ["", "r"] and parts[2]:
        return parts[2], "".join(f"/{part}" for part in parts[3:])
    return "", ""


def _leaves_rubbish(request: BaseRequest) -> bool:
    """Return True if the bytes after a declined request may not be the next request: the body broke
    off, or its unread rest would be taken for a request."""
    return "Upgrade" in request.headers or request.content.exception() is not None


def _credential(request: BaseRequest) -> str:
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        return token.strip()
    return request.headers.get("x-api-key", "")
