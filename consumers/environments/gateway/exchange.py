"""One HTTP request to an endpoint, from its body to the last byte of its answer.

The status is sent only with the answer, so that a failure is a status too. A stream that waits
longer than `hold_s` is begun without its answer, kept open by events that clients skip, and reports
a failure as an event.
"""

import asyncio
from dataclasses import dataclass, replace

from aiohttp import web
from aiohttp.web_request import BaseRequest

from rollcall.consumers.environments.gateway.adapter_dialect import observation_body
from rollcall.consumers.environments.gateway.body_budget import BodyBudget, HeldBytes
from rollcall.consumers.environments.gateway.connection import Connection
from rollcall.consumers.environments.gateway.endpoint import Client, GatewayEndpoint
from rollcall.consumers.environments.gateway.large_bodies import LargeBodies
from rollcall.inference.dialects.dialect import Declined, Dialect, ParsedRequest
from rollcall.inference.dialects.routes import (
    EVENTS,
    JSON,
    HttpAnswer,
    answer,
    error_answer,
    rest_of_stream,
)
from rollcall.schemas.agent_requests import ModelReply, Reply, StepReply
from rollcall.schemas.untrusted_text import clean_text

LARGE_BYTES = 256 * 1024
"""Larger bodies are parsed by a process; smaller ones take a few milliseconds."""
QUOTED_CHARS = 500
"""The length to which the error of a request that is not HTTP is cut: parsers quote the request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayLimits:
    """The limits and timeouts of a gateway."""

    body_bytes: int = 32 * 1024 * 1024
    bodies_bytes: int = 256 * 1024 * 1024
    """Limit for all bodies that are being read."""
    bodies_of_session_bytes: int = 64 * 1024 * 1024
    body_s: float = 120.0
    """Time in which a body has to arrive."""
    first_request_s: float = 10.0
    """Time in which a connection has to send the head of its first request."""
    connections: int = 8192
    connections_of_session: int = 256
    """Connections of one endpoint; at a listener of its own, those without a key count too."""
    open_calls: int = 4096
    open_calls_of_session: int = 64
    hold_s: float = 60.0
    """Time for which a stream is held back, so that a failure until then is a status."""
    wait_every_s: float = 15.0
    """Interval of keep-alive events in a stream that was begun without its answer."""
    retry_after_s: int = 1
    """The Retry-After of a request that exceeds a limit."""


class Exchange:
    """A request whose endpoint and dialect are known, and its answer."""

    def __init__(
        self,
        request: BaseRequest,
        connection: Connection,
        endpoint: GatewayEndpoint,
        dialect: Dialect,
        limits: GatewayLimits,
        budget: BodyBudget,
        large: LargeBodies,
    ) -> None:
        self.budget = budget
        self.large = large
        self.request = request
        self.connection = connection
        self.endpoint = endpoint
        self.dialect = dialect
        self.limits = limits

    async def read(self) -> ParsedRequest:
        """Read and parse the body. Raises Declined."""
        with self.budget.body(self.endpoint.key) as held:
            return await self._read(await self._body(held))

    async def answer(self, parsed: ParsedRequest) -> web.StreamResponse:
        """Pass the request to the session, wait for the reply, and write it.

        Raises Declined and TooManyOpen before the session sees the request, ConnectionError if the
        client leaves while it is written to.
        """
        client = self._attach(parsed)
        # The wait may be long, so the texts are freed.
        parsed = replace(parsed, request=parsed.request.without_texts())
        if parsed.stream and not await client.answered_within(self.limits.hold_s):
            return await self._answer_late(parsed, client)
        whole = self._answer(parsed, await client.reply())
        return await self._write(client, response_of(whole))

    async def _body(self, held: HeldBytes) -> bytearray:
        """Receive the body within the limits of time, size and rate. Raises Declined."""
        if self.request.headers.get("Expect", "").lower() == "100-continue":
            await self.request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            self.request.writer.output_size = 0  # aiohttp does the same: nothing is answered yet
        rate = self.budget.rate(self.endpoint.key)
        body = bytearray()  # the request's own `read` would keep it for as long as it is open
        try:
            async with asyncio.timeout(self.limits.body_s):
                async for data in self.request.content.iter_any():
                    held.add(len(data))
                    body += data
                    if len(body) > self.limits.body_bytes:
                        msg = f"the body is larger than {self.limits.body_bytes:,} bytes"
                        raise Declined(413, "request_too_large", msg)
                    await rate.wait_after(len(data))
        except BaseException as error:
            body.clear()  # a failure keeps this frame until the garbage collector runs
            if isinstance(error, web.RequestPayloadError):
                msg = f"the body cannot be read: {clean_text(str(error), QUOTED_CHARS)}"
                raise Declined(400, "invalid_request_error", msg) from error
            if isinstance(error, TimeoutError):
                msg = f"the body did not come to its end within {self.limits.body_s:g} s"
                raise Declined(408, "request_timeout", msg) from None
            raise
        return body

    async def _read(self, body: bytearray) -> ParsedRequest:
        """Parse a body; a large one in another process, as it may take seconds. Raises Declined."""
        policies, conversations = self.endpoint.policies, self.endpoint.conversations
        if len(body) <= LARGE_BYTES:
            return self.dialect.read(bytes(body), policies, conversations)
        return await self.large.read(
            self.endpoint.key, self.dialect, body, policies, conversations, self._gone
        )

    def _gone(self) -> bool:
        return self.request.transport is None or self.endpoint.closed

    def _attach(self, parsed: ParsedRequest) -> Client:
        if self.endpoint.closed:  # it was closed while the body arrived
            raise rollout_over()
        headers = self.request.headers
        count = headers.get("x-stainless-retry-count", "")
        retry = count.isdigit() and count.strip("0") != ""
        key = headers.get("Idempotency-Key", "")
        client = self.endpoint.attach(parsed.request, retry=retry, key=key)
        self.connection.client = client
        return client

    def _answer(self, parsed: ParsedRequest, reply: Reply | None) -> HttpAnswer:
        """Return the whole answer to a request whose status is not sent yet."""
        if reply is None:
            return error_answer(self.dialect, rollout_over())
        if isinstance(reply, StepReply):
            return HttpAnswer(200, {"Content-Type": JSON}, observation_body(reply))
        self._keep(parsed, reply)
        return answer(self.dialect, parsed, reply)

    def _keep(self, parsed: ParsedRequest, reply: Reply) -> None:
        if isinstance(reply, ModelReply):
            self.endpoint.conversations.add(self.dialect.kept(parsed, reply))

    async def _answer_late(self, parsed: ParsedRequest, client: Client) -> web.StreamResponse:
        """Begin a stream without its answer, and keep it open until the answer is there."""
        response = web.StreamResponse(headers={"Content-Type": EVENTS})
        await response.prepare(self.request)
        await response.write(self.dialect.waiting)
        while not await client.answered_within(self.limits.wait_every_s):
            await response.write(self.dialect.waiting)
        return await self._write(client, response, self._events(parsed, await client.reply()))

    def _events(self, parsed: ParsedRequest, reply: Reply | None) -> bytes:
        if reply is None:
            return self.dialect.error_event(rollout_over())
        self._keep(parsed, reply)
        return rest_of_stream(self.dialect, parsed, reply)

    async def _write(
        self, client: Client, response: web.StreamResponse, last: bytes = b""
    ) -> web.StreamResponse:
        await response.prepare(self.request)
        await response.write_eof(last)
        client.reply_written()
        return response


def response_of(whole: HttpAnswer) -> web.Response:
    """Return a response that aiohttp writes with headers and body at once."""
    return web.Response(status=whole.status, body=whole.body, headers=dict(whole.headers))


def rollout_over() -> Declined:
    """Return the refusal of a request after the end of its rollout or attempt."""
    return Declined(404, "not_found", "this rollout, or this attempt at it, is over")
