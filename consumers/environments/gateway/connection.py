"""One HTTP connection of an agent's process, and the server that accepts it.

It changes some behaviour of aiohttp: a request that is not HTTP is answered in JSON, the reader of
a body learns that it broke off, a bug is logged with its place, and the client whose answer
was written last is told when and how the connection is lost.
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

from rollcall.consumers.environments.gateway.hang_ups import HangUps
from rollcall.consumers.environments.gateway.line import Client, TooManyOpen
from rollcall.consumers.environments.gateway.listener import BACKLOG
from rollcall.consumers.environments.gateway.parsing_share import (
    HEAD_BYTES,
    MOST_OWED_S,
    PIECE_BYTES,
    ParsingShare,
)

Serve = Callable[[BaseRequest], Awaitable[web.StreamResponse]]
Complain = Callable[[BaseRequest, int, str], web.StreamResponse]
"""Returns an error in the form that the request's path asks for."""

AT_ONCE = 32
"""Connections that are accepted in one go, before the first of them is handled and may end others.

asyncio uses its backlog for this; without descriptors it tries as often, and logs each failure."""
CLOSE_S = 1.0
"""Seconds in which the last answers are written, and the last requests are read."""

log = structlog.get_logger()


class Connection(web.RequestHandler):
    """Holds the client of its current or last request."""

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
        """True if it has ever sent a request with the key of a line."""
        self._share = share
        self._resting: asyncio.TimerHandle | None = None
        self._owed_s = 0.0
        """Pause that its latest request has cost, in seconds."""
        self._has_room = False
        """True if aiohttp would have read on during a pause."""
        self._first_s = first_s
        self._silent: asyncio.TimerHandle | None = None
        self._hang_ups = hang_ups
        self._tcp: asyncio.Transport | None = None
        """The `transport`, which aiohttp drops on closing it; None once the connection is lost."""
        self._cut: OSError | None = None
        self._complain = complain
        self._latest_body: StreamReader | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Close a connection that does not send the whole head of a request in time.

        aiohttp has a timeout between requests, but none before the first.
        """
        super().connection_made(transport)
        transport.max_size = HEAD_BYTES  # type: ignore[attr-defined]
        self._tcp = cast(asyncio.Transport, transport)
        self._hang_ups.watch(_socket_of(self._tcp).fileno(), self.end_soon)
        loop = asyncio.get_running_loop()
        self._silent = loop.call_later(self._first_s, self.force_close)

    def end_soon(self) -> None:
        """Close it soon without reading to its end: its client hung up, or its session is over."""
        asyncio.get_running_loop().call_later(CLOSE_S, self._end, self._share)

    def _end(self, share: ParsingShare) -> None:
        if self._tcp is None or self._share is not share:  # it serves another session by now
            return
        code = _socket_of(self._tcp).getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code or self._tcp.get_write_buffer_size():
            self._cut = ConnectionResetError(code or errno.ECONNRESET, "the client has hung up")
        self._tcp.abort()

    def data_received(self, data: bytes) -> None:
        """Fail a body that breaks off with bytes that are no HTTP: aiohttp queues the error behind
        the request, which waits for the rest of its body and so would never be answered."""
        begun = time.thread_time()
        super().data_received(data)
        owed_s = self._share.spent(time.thread_time() - begun, again=not data)
        self._owed_s += min(owed_s, MOST_OWED_S / 2)  # it may have been a garbage collection
        if not self.known and (rest_s := self._share.rest_s()):
            self.rest(rest_s)  # only this one: others that have shown no key yet may be honest
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
        """Assign it to a session, which pays for its bytes from now on.

        Raises TooManyOpen if the session has `most` connections: no session can use up all.
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
        """Read and parse nothing for `seconds`."""
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
        """Let aiohttp parse on when it has room; during a pause of the session, do so later."""
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
        """Log an error of a request, except for an unreadable body, which was answered already."""
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
        """Answer bytes that are not HTTP, or a failure of ours; then the connection ends."""
        if isinstance(exc, ConnectionError):  # the client has gone, so there is no one to answer
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
    """Accepts connections, up to a limit."""

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
        """Close one connection if there are too many: the worker needs descriptors for the log too.

        This is the oldest that has never shown a key, else the new one.
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
    """A listening socket, and all connections that it has accepted."""

    def __init__(self, server: asyncio.Server, http: GatewayServer) -> None:
        self._server = server
        self._http = http
        self.stop = server.close
        """Stop listening."""

    @classmethod
    async def open(
        cls, listener: socket.socket, serve: Serve, complain: Complain, most: int, first_s: float
    ) -> "Door":
        """Accept up to `most` connections from now on; the listener belongs to the door.

        The head of a connection's first request has to arrive within `first_s` seconds.
        """
        http = GatewayServer(serve, complain, most=most, first_s=first_s)
        loop = asyncio.get_running_loop()
        server = await loop.create_server(http, sock=listener, backlog=AT_ONCE)
        listener.listen(BACKLOG)
        return cls(server, http)

    async def close(self) -> None:
        """Stop, and end all connections once they are answered. May be called twice."""
        self.stop()
        self._http.pre_shutdown()  # idle connections need not be waited for
        await self._http.shutdown(CLOSE_S)
        self._http.hang_ups.close()

    def connections(self) -> list[web.RequestHandler]:
        """Return the open connections."""
        return self._http.connections
