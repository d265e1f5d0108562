"""The HTTP server through which agents' processes reach their sessions: keys, routes, limits.

It runs in the environments worker, on its event loop. A session opens an endpoint; only the key of
that endpoint, in the path and as the caller's credential, gives access to it. An endpoint may have
a listener of its own, a socket that listens in a box: then it is served there and nowhere else, and
no other endpoint is. One request is one call of the endpoint (`endpoint.py` defines when it is a
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
from rollcall.consumers.environments.gateway.connection import Connection
from rollcall.consumers.environments.gateway.endpoint import GatewayEndpoint, OpenCalls, TooManyOpen
from rollcall.consumers.environments.gateway.exchange import (
    QUOTED_CHARS,
    Exchange,
    GatewayLimits,
    response_of,
    rollout_over,
)
from rollcall.consumers.environments.gateway.http_listener import HttpListener, connection_limit
from rollcall.consumers.environments.gateway.large_bodies import LargeBodies
from rollcall.consumers.environments.gateway.listening_socket import address_of
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
DRAIN_S = 5.0
"""Time in which the rest of the body of a declined request is read."""


@dataclass(frozen=True, slots=True)
class ObservedRequest:
    """A request that the gateway has parsed, or declined."""

    method: str
    path: str
    """The path behind the base URL; the whole path of a request that is not below one."""
    parsed: ParsedRequest | None = None
    """The parsed request; None if it was declined."""
    declined: Declined | None = None


def _ignore(_: ObservedRequest) -> None:
    pass


class Gateway:
    """Serves the endpoints of one worker, on the event loop on which `start` is awaited."""

    def __init__(
        self,
        listener: socket.socket,
        limits: GatewayLimits | None = None,
        observe: Callable[[ObservedRequest], None] = _ignore,
    ) -> None:
        """Take over the socket; `observe` is called with each call and each refusal."""
        self._observe = observe
        self.limits = limits = limits or GatewayLimits()
        self.open_calls = OpenCalls(limits.open_calls, limits.open_calls_of_session)
        self.address = address_of(listener)
        """The URL for processes of this machine."""
        self.budget = BodyBudget(
            limits.bodies_bytes, limits.bodies_of_session_bytes, limits.retry_after_s
        )
        self.large = LargeBodies()
        self._socket = listener
        self._endpoints: dict[str, GatewayEndpoint] = {}
        self._listener: HttpListener | None = None
        """The common listener."""
        self._own_listeners: dict[str, HttpListener] = {}
        """The listeners of endpoints that have one of their own, by key."""
        self._closing: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Accept requests from now on."""
        most = min(self.limits.connections, connection_limit())
        self._listener = await self._listen(self._socket, "", most)

    async def close(self) -> None:
        """End all endpoints and connections, and stop listening. May be called twice."""
        for endpoint in tuple(self._endpoints.values()):
            await endpoint.close()
        while self._closing:
            await asyncio.wait(self._closing)
        if self._listener is not None:
            await self._listener.close()
        await self.large.close()
        self._socket.close()

    def connections(self) -> list[web.RequestHandler]:
        """Return the open connections of the common listener."""
        return self._listener.connections() if self._listener is not None else []

    def open_endpoint(self, policies: Sequence[str], task: Mapping[str, object]) -> GatewayEndpoint:
        """Open an endpoint with a new key, at which these policies can be used."""
        return self._new_endpoint(self.address, policies, task)

    async def open_endpoint_at(
        self, policies: Sequence[str], task: Mapping[str, object], listener: socket.socket
    ) -> GatewayEndpoint:
        """Open an endpoint that is served on this socket alone, which it takes over."""
        endpoint = self._new_endpoint(address_of(listener), policies, task)
        most = self.limits.connections_of_session
        self._own_listeners[endpoint.key] = await self._listen(listener, endpoint.key, most)
        return endpoint

    async def _listen(self, listener: socket.socket, own_key: str, most: int) -> HttpListener:
        serve = partial(self._serve, own_key)
        head_s = self.limits.first_request_s
        return await HttpListener.open(listener, serve, self._decline_malformed, most, head_s)

    def _new_endpoint(
        self, address: str, policies: Sequence[str], task: Mapping[str, object]
    ) -> GatewayEndpoint:
        key = secrets.token_urlsafe(24)
        url = f"{address}/r/{key}"
        endpoint = GatewayEndpoint(url, key, policies, task, self.open_calls, self._forget)
        self._endpoints[key] = endpoint
        return endpoint

    def _forget(self, endpoint: GatewayEndpoint) -> None:
        self._endpoints.pop(endpoint.key, None)
        self.large.forget(endpoint.key)
        self.budget.forget(endpoint.key)
        for connection in endpoint.share.connections:
            connection.end_soon()
        listener = self._own_listeners.pop(endpoint.key, None)
        if listener is not None:
            listener.stop()
            closing = asyncio.create_task(listener.close(), name="listener of an endpoint")
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)

    async def _serve(self, own_key: str, request: BaseRequest) -> web.StreamResponse:
        """Answer a request; `own_key`: of the listener's only endpoint, empty at the common one."""
        connection = cast(Connection, request.protocol)
        if connection.client is not None:  # a further request proves that the last answer arrived
            connection.client.confirm()
        connection.client = None
        response = await self._answer_or_decline(own_key, request, connection)
        if not response.prepared and _must_close_after(request):
            response.force_close()
        elif not response.prepared and not request.content.is_eof():
            await self._answer_and_drain(request, response)
        return response

    async def _answer_and_drain(self, request: BaseRequest, response: web.StreamResponse) -> None:
        """Answer before the whole body has arrived, then read some of the rest.

        A client that is still sending reads the answer only then. aiohttp itself would read the
        whole rest, without a limit of rate.
        """
        key, _ = _key_and_path(request)
        rate = self.budget.rate(key if key in self._endpoints else "")
        response.force_close()
        await response.prepare(request)
        await response.write_eof()
        with suppress(TimeoutError, web.RequestPayloadError):
            async with asyncio.timeout(DRAIN_S):
                async for data in request.content.iter_any():
                    await rate.wait_after(len(data))

    async def _answer_or_decline(
        self, own_key: str, request: BaseRequest, connection: Connection
    ) -> web.StreamResponse:
        try:
            return await self._answer(own_key, request, connection)
        except TooManyOpen as error:
            retry_after_s = self.limits.retry_after_s
            declined = Declined(429, "rate_limit_exceeded", str(error), retry_after_s=retry_after_s)
            response = self._decline(request, declined)
            response.force_close()  # thousands may come at once, and connections are few
            return response
        except Declined as declined:
            return self._decline(request, declined)

    async def _answer(
        self, own_key: str, request: BaseRequest, connection: Connection
    ) -> web.StreamResponse:
        """Answer a request. Raises Declined, TooManyOpen; ConnectionError if the client leaves."""
        key, path = _key_and_path(request)
        if request.method == "POST" and path in DIALECTS:
            endpoint = self._endpoint(own_key, request, key)
            self._assign(connection, endpoint)
            exchange = Exchange(
                request, connection, endpoint, DIALECTS[path], self.limits, self.budget, self.large
            )
            # No variable here: it would keep the texts of the request while `answer` waits.
            return await exchange.answer(await self._read(exchange, path))
        if request.method == "GET" and path in DOCUMENTS:
            endpoint = self._endpoint(own_key, request, key)
            self._assign(connection, endpoint)
            return response_of(HttpAnswer(200, {"Content-Type": JSON}, DOCUMENTS[path](endpoint)))
        if (
            request.method == "HEAD"
            and path in PROBES
            and self._is_served_at(own_key, key)
            and key in self._endpoints
        ):
            return web.Response()
        msg = f"{request.method} {path or request.path}: there is no such route"
        raise Declined(404, "not_found", clean_text(msg))

    async def _read(self, exchange: Exchange, path: str) -> ParsedRequest:
        parsed = await exchange.read()
        self._observe(ObservedRequest("POST", path, parsed))
        return parsed

    def _decline(self, request: BaseRequest, declined: Declined) -> web.Response:
        """Return the refusal in the form of the path's dialect, whether or not its key is valid."""
        key, path = _key_and_path(request)
        shown = path or ("/" if key else request.path)
        self._observe(
            ObservedRequest(request.method, clean_text(shown, QUOTED_CHARS), declined=declined)
        )
        return response_of(error_answer(dialect_of(path), declined))

    def _decline_malformed(self, request: BaseRequest, status: int, message: str) -> web.Response:
        """Return the refusal of a request that is not HTTP, or that we failed to answer."""
        code = "invalid_request_error" if status < 500 else "internal_error"
        return self._decline(request, Declined(status, code, clean_text(message, QUOTED_CHARS)))

    def _assign(self, connection: Connection, endpoint: GatewayEndpoint) -> None:
        """Assign the connection to an endpoint. Raises TooManyOpen."""
        connection.assign(endpoint.share, self.limits.connections_of_session)

    def _endpoint(self, own_key: str, request: BaseRequest, key: str) -> GatewayEndpoint:
        """Return the endpoint that a request may use. Raises Declined: 401 or 404."""
        given = _credential(request).encode("utf-8", "surrogateescape")
        if not hmac.compare_digest(given, key.encode()):
            raise Declined(401, "invalid_api_key", "the request's key is not that of its URL")
        if not self._is_served_at(own_key, key):
            msg = "the key is that of an endpoint with another address"
            raise Declined(401, "invalid_api_key", msg)
        endpoint = self._endpoints.get(key)
        if endpoint is None:
            raise rollout_over()
        return endpoint

    def _is_served_at(self, own_key: str, key: str) -> bool:
        """Return False if the key's endpoint, if there is one, is served by another listener."""
        return key == own_key if own_key else key not in self._own_listeners


DOCUMENTS: Mapping[str, Callable[[GatewayEndpoint], bytes]] = {
    "/v1/models": lambda endpoint: models_body(endpoint.policies),
    "/v1/task": lambda endpoint: orjson.dumps(endpoint.task),
}
"""The documents that GET returns, by path."""


def _key_and_path(request: BaseRequest) -> tuple[str, str]:
    """Split /r/KEY or /r/KEY/PATH into key and path; return two empty strings for other paths."""
    parts = request.rel_url.raw_path.split("/", 3)
    if len(parts) >= 3 and parts[:2] == ["", "r"] and parts[2]:
        return parts[2], "".join(f"/{part}" for part in parts[3:])
    return "", ""


def _must_close_after(request: BaseRequest) -> bool:
    """Return True if the bytes after a declined request may not be the next request.

    Its body broke off, or the unread rest would be taken for a request.
    """
    return "Upgrade" in request.headers or request.content.exception() is not None


def _credential(request: BaseRequest) -> str:
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        return token.strip()
    return request.headers.get("x-api-key", "")
