"""One HTTP request to a line, from its body to the last byte of its answer.

The status line is held back until the answer is there. A stream that waits longer than `hold_s` is
begun without it, kept open by events that clients skip, and reports a failure inside the stream.
"""

import asyncio
from dataclasses import dataclass, replace

from aiohttp import web
from aiohttp.web_request import BaseRequest

from rollcall.consumers.environments.gateway.adapter_dialect import shown_body
from rollcall.consumers.environments.gateway.body_budget import BodyBudget, HeldBytes
from rollcall.consumers.environments.gateway.connection import Connection
from rollcall.consumers.environments.gateway.large_bodies import LargeBodies
from rollcall.consumers.environments.gateway.line import Client, GatewayLine
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
"""Bodies from this size are read by a process; smaller ones take a few milliseconds."""
SAID_CHARS = 500
"""The length to which the error of a request that is not HTTP is cut; a parser quotes it."""


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
    """Connections of one line; at a line's own door, those without a key count too."""
    open_calls: int = 4096
    open_calls_of_session: int = 64
    hold_s: float = 60.0
    """Time that a stream waits for its answer before it is begun, so that a failure is a status."""
    wait_every_s: float = 15.0
    """Interval of keep-alive events in a stream that was begun without its answer."""
    retry_after_s: int = 1
    """The Retry-After of a request that exceeds a limit."""


class Exchange:
    """A request whose line and dialect are known."""

    def __init__(
        self,
        request: BaseRequest,
        connection: Connection,
        line: GatewayLine,
        dialect: Dialect,
        limits: GatewayLimits,
        budget: BodyBudget,
        large: LargeBodies,
    ) -> None:
        self.budget = budget
        self.large = large
        self.request = request
        self.connection = connection
        self.line = line
        self.dialect = dialect
        self.limits = limits

    async def read(self) -> ParsedRequest:
        """Read and parse the body. Raises Declined."""
        with self.budget.body(self.line.key) as held:
            return await self._read(await self._body(held))

    async def answer(self, asked: ParsedRequest) -> web.StreamResponse:
        """Ask what the body asked, and write the reply.

        Raises Declined and TooManyOpen before anything is asked, ConnectionError if the client
        leaves while it is written to.
        """
        client = self._attach(asked)
        asked = replace(asked, request=asked.request.without_texts())  # the wait may be long
        if asked.stream and not await client.told_within(self.limits.hold_s):
            return await self._late(asked, client)
        whole = self._answer(asked, await client.reply())
        return await self._write(client, response_of(whole))

    async def _body(self, held: HeldBytes) -> bytearray:
        if self.request.headers.get("Expect", "").lower() == "100-continue":
            await self.request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            self.request.writer.output_size = 0  # aiohttp does the same: nothing is answered yet
        rate = self.budget.rate(self.line.key)
        body = bytearray()  # the request's own `read` would keep it for as long as it is open
        try:
            async with asyncio.timeout(self.limits.body_s):
                async for data in self.request.content.iter_any():
                    held.add(len(data))
                    body += data
                    if len(body) > self.limits.body_bytes:
                        msg = f"the body is larger than {self.limits.body_bytes:,} bytes"
                        raise Declined(413, "request_too_large", msg)
                    await rate.taken(len(data))
        except BaseException as error:
            body.clear()  # a failure keeps this frame until the garbage collector runs
            if isinstance(error, web.RequestPayloadError):
                msg = f"the body cannot be read: {clean_text(str(error), SAID_CHARS)}"
                raise Declined(400, "invalid_request_error", msg) from error
            if isinstance(error, TimeoutError):
                msg = f"the body did not come to its end within {self.limits.body_s:g} s"
                raise Declined(408, "request_timeout", msg) from None
            raise
        return body

    async def _read(self, body: bytearray) -> ParsedRequest:
        """Parse a body; a large one, which may take seconds, in another process."""
        policies, conversations = self.line.policies, self.line.conversations
        if len(body) <= LARGE_BYTES:
            return self.dialect.read(bytes(body), policies, conversations)
        return await self.large.read(
            self.line.key, self.dialect, body, policies, conversations, self._gone
        )

    def _gone(self) -> bool:
        return self.request.transport is None or self.line.over

    def _attach(self, asked: ParsedRequest) -> Client:
        if self.line.over:  # it was closed while the body arrived
            raise over()
        headers = self.request.headers
        count = headers.get("x-stainless-retry-count", "")
        retry = count.isdigit() and count.strip("0") != ""
        key = headers.get("Idempotency-Key", "")
        client = self.line.attach(asked.request, retry=retry, key=key)
        self.connection.client = client
        return client

    def _answer(self, asked: ParsedRequest, reply: Reply | None) -> HttpAnswer:
        """Return the whole answer to a request of which nothing is answered yet."""
        if reply is None:
            return error_answer(self.dialect, over())
        if isinstance(reply, StepReply):
            return HttpAnswer(200, {"Content-Type": JSON}, shown_body(reply))
        self._keep(asked, reply)
        return answer(self.dialect, asked, reply)

    def _keep(self, asked: ParsedRequest, reply: Reply) -> None:
        if isinstance(reply, ModelReply):
            self.line.conversations.remember(self.dialect.kept(asked, reply))

    async def _late(self, asked: ParsedRequest, client: Client) -> web.StreamResponse:
        """Begin a stream without its answer."""
        response = web.StreamResponse(headers={"Content-Type": EVENTS})
        await response.prepare(self.request)
        await response.write(self.dialect.waiting)
        while not await client.told_within(self.limits.wait_every_s):
            await response.write(self.dialect.waiting)
        return await self._write(client, response, self._events(asked, await client.reply()))

    def _events(self, asked: ParsedRequest, reply: Reply | None) -> bytes:
        if reply is None:
            return self.dialect.error_event(over())
        self._keep(asked, reply)
        return rest_of_stream(self.dialect, asked, reply)

    async def _write(
        self, client: Client, response: web.StreamResponse, last: bytes = b""
    ) -> web.StreamResponse:
        await response.prepare(self.request)
        await response.write_eof(last)
        client.written()
        return response


def response_of(whole: HttpAnswer) -> web.Response:
    """Return a response that aiohttp writes with headers and body at once."""
    return web.Response(status=whole.status, body=whole.body, headers=dict(whole.headers))


def over() -> Declined:
    """Return the refusal of a request after the end of its rollout or attempt."""
    return Declined(404, "not_found", "this rollout, or this attempt at it, is over")
