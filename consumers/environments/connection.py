"""One HTTP connection of an agent's process, and the server that accepts it.

Here is what aiohttp must be told to do otherwise: a request that is no HTTP is answered in JSON,
who reads a body learns that it broke off, a bug is logged with its place, and the one whose answer
was written last is told when the connection is lost, and how.
"""

import asyncio
import errno
import socket
import time
from collections.abc import Awaitable, Callable
from functools import partial
from math import inf
from typing import Any, cast

import structlog
from aiohttp import StreamReader, web
from aiohttp.http import RawRequestMessage
from aiohttp.web_request import BaseRequest

from consumers.environments.hang_ups import HangUps
from consumers.environments.line import Client, TooManyOpen
from consumers.environments.listener import BACKLOG
from consumers.environments.parsing_share import (
    HEAD_BYTES,
    MOST_OWED_S,
    PIECE_BYTES,
    ParsingShare,
)

Serve = Callable[[BaseRequest], Awaitable[web.StreamResponse]]
Complain = Callable[[BaseRequest, int, str], web.StreamResponse]
"""An error in the form that the request's path asks for."""

AT_ONCE = 32
"""Connections that are accepted before the first of them is looked at, which may end others.

asyncio takes its backlog for that; without descriptors it tries as often, and logs each failure."""
CLOSE_S = 1.0
"""What the last answers may take to be written, and the last requests to be read."""

log = structlog.get_logger()


class Connection(web.RequestHandler):
    """Knows the client whose request it carries, or carried last."""

    def __init__(
        self,
        complain: Complain,
        first_s: float,
        share: ParsingShare,
        hang_ups: HangUps,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.client: Client | None = None
        self.known = False
        """Whether it has ever sent a request with a line's key."""
        self._share = share
        self._resting: asyncio.TimerHandle | None = None
        self._owed_s = 0.0
        """What its latest request has cost."""
        self._has_room = False
        """Whether aiohttp would have read on while it rests."""
        self._first_s = first_s
        self._silent: asyncio.TimerHandle | None = None
        self._hang_ups = hang_ups
        self._tcp: asyncio.Transport | None = None
        """As `transport`, which aiohttp forgets when it closes it; None when it is lost."""
        self._cut: OSError | None = None
        self._complain = complain
        self._latest_body: StreamReader | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Close a connection that sends no whole head of a request in time.

        aiohttp has a clock for what comes after the first request, and none before.
        """
        super().connection_made(transport)
        transport.max_size = HEAD_BYTES  # type: ignore[attr-defined]
        self._tcp = cast(asyncio.Transport, transport)
        self._hang_ups.watch(_socket_of(self._tcp).fileno(), self.end_soon)
        loop = asyncio.get_running_loop()
        self._silent = loop.call_later(self._first_s, self.force_close)

    def end_soon(self) -> None:
        """End it though its end is not read: its client has hung up, or its session is over."""
        asyncio.get_running_loop().call_later(CLOSE_S, self._end, self._share)

    def _end(self, share: ParsingShare) -> None:
        if self._tcp is None or self._share is not share:  # it serves another session by now
            return
        code = _socket_of(self._tcp).getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code or self._tcp.get_write_buffer_size():
            self._cut = ConnectionResetError(code or errno.ECONNRESET, "the client has hung up")
        self._tcp.abort()

    def data_received(self, data: bytes) -> None:
        """What is no HTTP in the middle of a body ends that body: aiohttp queues the error behind
        the request, which waits for the rest of its body and so would never be answered."""
        begun = time.thread_time()
        super().data_received(data)
        owed_s = self._share.spent(time.thread_time() - begun, again=not data)
        self._owed_s += min(owed_s, MOST_OWED_S / 2)  # it may have been a garbage collection
        if not self.known and (rest_s := self._share.rest_s()):
            self.rest(rest_s)  # it alone: others that have shown no key yet may be honest
        if self._owed_s > MOST_OWED_S and self.transport is not None:
            log.warning("connection_too_costly", known=self.known)
            asyncio.get_running_loop().call_soon(self.transport.abort)
            self._owed_s = -inf
        if not self._messages:
            return
        self._not_silent()
        self._owed_s = 0.0
        message, body = self._messages[-1]
        if isinstance(message, RawRequestMessage):
            self._latest_body = body
        elif self._latest_body is not None and not self._latest_body.is_eof():
            self._latest_body.set_exception(web.RequestPayloadError(message.message))
            self._latest_body = None

    def belong(self, share: ParsingShare, most: int) -> None:
        """Count it as its session's from now on, with what its bytes cost.

        Raises TooManyOpen where the session has as many: no session takes the room of all.
        """
        if share is not self._share:
            if len(share.connections) >= most:
                msg = f"{most} connections of this agent are open, as many as may be"
                raise TooManyOpen(msg)
            self._share.connections.discard(self)
            share.connections.add(self)
            self._share = share
            self.known = True
            if self._tcp is not None:
                self._tcp.max_size = PIECE_BYTES  # type: ignore[attr-defined]
            self._go_on()

    def rest(self, seconds: float) -> None:
        """Read nothing for so long, and parse nothing of what has come."""
        if self._resting is None and self.transport is not None:
            self._pause_transport_reading()
            self._resting = asyncio.get_running_loop().call_later(seconds, self._go_on)

    def _go_on(self) -> None:
        if self._resting is None:
            return
        self._resting.cancel()
        self._resting = None
        if rest_s := self._share.rest_s():
            self.rest(rest_s)
        elif self._has_room:
            self._has_room = False
            self.resume_reading()
        elif not self._reading_paused and not self._buffer_paused:
            self._resume_transport_reading()

    def resume_reading(self, resume_parser: bool = True) -> None:
        """aiohttp parses on when it has room; for a session that is to rest, later."""
        if resume_parser and self._resting is not None:
            self._has_room = True
        else:
            super().resume_reading(resume_parser)

    def _resume_transport_reading(self) -> None:
        if self._resting is None:
            super()._resume_transport_reading()

    def _not_silent(self) -> None:
        if self._silent is not None:
            self._silent.cancel()
            self._silent = None

    def connection_lost(self, exc: BaseException | None) -> None:
        self._not_silent()
        if self._tcp is not None:
            self._hang_ups.forget(_socket_of(self._tcp).fileno())
            self._tcp = None
        exc = exc or self._cut
        self._share.connections.discard(self)
        if self._resting is not None:
            self._resting.cancel()
            self._resting = None
        super().connection_lost(exc)
        if self.client is not None:
            self.client.lost(exc)
            self.client = None

    def log_exception(self, *args: Any, **kw: Any) -> None:
        """A body that cannot be read was answered; aiohttp stumbles over what is left of it."""
        error = kw.get("exc_info")
        if not isinstance(error, web.RequestPayloadError):
            log.error("gateway_failed", where=str(args[0]), exc_info=error)

    def handle_error(
        self,
        request: BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Answer what is no HTTP, or what fails in us; the connection ends with it."""
        if isinstance(exc, ConnectionError):  # the client has gone, and nobody is to be answered
            raise exc
        if status >= 500:
            log.error("gateway_failed", path=request.path, exc_info=exc)
        if request.writer.output_size > 0:
            msg = "a part of the answer is written"
            raise ConnectionError(msg)
        response = self._complain(request, status, message or "the gateway failed")
        response.force_close()
        return response


def _socket_of(transport: asyncio.Transport) -> socket.socket:
    return cast(socket.socket, transport.get_extra_info("socket"))


class GatewayServer(web.Server):
    """Accepts connections, so many and no more."""

    def __init__(self, serve: Serve, complain: Complain, *, most: int, first_s: float) -> None:
        super().__init__(serve)
        self.hang_ups = HangUps()
        self._make = partial(
            Connection,
            complain,
            first_s,
            ParsingShare(),
            self.hang_ups,
            self,
            loop=asyncio.get_running_loop(),
            access_log=None,
        )
        self._most = most
        self._full = False

    def __call__(self) -> web.RequestHandler:
        return self._make()

    def connection_made(self, handler: web.RequestHandler, transport: asyncio.Transport) -> None:
        """Close one where they are too many: the worker needs descriptors for the log too.

        It is the oldest of those that have never shown a key, else the one that has just come.
        """
        super().connection_made(handler, transport)
        full = len(self.connections) > self._most
        if full:
            strangers = (
                each
                for each in self.connections
                if not getattr(each, "known", True) and each.connected  # not being closed already
            )
            oldest = next(strangers, handler)
            if oldest is not handler:
                oldest.force_close()
            else:
                asyncio.get_running_loop().call_soon(transport.abort)  # once it has begun
            if not self._full:
                log.warning("gateway_full", connections=self._most)
        self._full = full


class Door:
    """A socket that listens, and all connections that came in by it."""

    def __init__(self, server: asyncio.Server, http: GatewayServer) -> None:
        self._server = server
        self._http = http
        self.stop = server.close
        """Listen no more."""

    @classmethod
    async def open(
        cls, listener: socket.socket, serve: Serve, complain: Complain, most: int, first_s: float
    ) -> "Door":
        """Take requests from now on, on so many connections; the listener is the door's.

        The head of a connection's first request has to come within `first_s` seconds.
        """
        http = GatewayServer(serve, complain, most=most, first_s=first_s)
        loop = asyncio.get_running_loop()
        server = await loop.create_server(http, sock=listener, backlog=AT_ONCE)
        listener.listen(BACKLOG)
        return cls(server, http)

    async def close(self) -> None:
        """Stop, and end all connections when they are answered. May be called twice."""
        self.stop()
        self._http.pre_shutdown()  # whoever is idle need not be waited for
        await self._http.shutdown(CLOSE_S)
        self._http.hang_ups.close()

    def connections(self) -> list[web.RequestHandler]:
        """Those that are open."""
        return self._http.connections
