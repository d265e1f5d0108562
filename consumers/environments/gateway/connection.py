"""One HTTP connection of an agent's process.

It changes some behaviour of aiohttp: a request that is not HTTP is answered in JSON, the reader of
a body gets an error if the body breaks off, a bug is logged with its place, and the client whose
answer was written last learns when and how the connection is lost.
"""

import asyncio
import errno
import select
import socket
import time
from collections.abc import Awaitable, Callable
from math import inf
from typing import Any, cast

import structlog
from aiohttp import StreamReader, web
from aiohttp.http import RawRequestMessage
from aiohttp.web_request import BaseRequest

from rollcall.consumers.environments.gateway.endpoint import Client, TooManyOpen
from rollcall.consumers.environments.gateway.parsing_share import (
    HEAD_BYTES,
    MOST_OWED_S,
    PIECE_BYTES,
    ParsingShare,
)

Serve = Callable[[BaseRequest], Awaitable[web.StreamResponse]]
DeclineRequest = Callable[[BaseRequest, int, str], web.StreamResponse]
"""Returns an error in the form that the request's path asks for."""

CLOSE_S = 1.0
"""Seconds in which the last answers are written, and the last requests are read."""

log = structlog.get_logger()


class HangUpWatcher:
    """Detects clients that hang up, for all connections of one listener, on its event loop.

    asyncio sees the end of a connection only when it reads up to it. A gateway that reads slowly,
    or holds bytes until a call is answered, would keep a connection and its body long after its
    client has gone.
    """

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._hung_up: dict[int, Callable[[], None]] = {}
        """The callback of each connection, by file descriptor."""
        asyncio.get_running_loop().add_reader(self._epoll.fileno(), self._notify)

    def watch(self, file: int, hung_up: Callable[[], None]) -> None:
        """Call `hung_up` once, when the other end is closed, half-closed or reset."""
        if not self._epoll.closed:  # one may have been accepted just before
            self._hung_up[file] = hung_up
            self._epoll.register(file, select.EPOLLRDHUP | select.EPOLLONESHOT)

    def forget(self, file: int) -> None:
        """Stop watching a connection that is still open."""
        if self._hung_up.pop(file, None) is not None:
            self._epoll.unregister(file)

    def close(self) -> None:
        """Stop watching all. May be called twice."""
        if not self._epoll.closed:
            asyncio.get_running_loop().remove_reader(self._epoll.fileno())
            self._epoll.close()
        self._hung_up.clear()

    def _notify(self) -> None:
        for file, _ in self._epoll.poll(0):
            self._hung_up[file]()


class Connection(web.RequestHandler):
    """Serves the requests of one connection, and holds the client of the current or last one."""

    def __init__(
        self,
        decline: DeclineRequest,
        head_s: float,
        share: ParsingShare,
        hang_ups: HangUpWatcher,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.client: Client | None = None
        self.known = False
        """True if it has ever sent a request with the key of an endpoint."""
        self._share = share
        self._pause: asyncio.TimerHandle | None = None
        """The end of the current pause; None if it is read from."""
        self._owed_s = 0.0
        """Pause that its latest request has cost, in seconds."""
        self._read_on = False
        """True if aiohttp would have read on during the pause."""
        self._head_s = head_s
        self._head_timeout: asyncio.TimerHandle | None = None
        """The timeout for the head of its first request."""
        self._hang_ups = hang_ups
        self._tcp: asyncio.Transport | None = None
        """The `transport`, which aiohttp drops on closing it; None once the connection is lost."""
        self._lost_answer: OSError | None = None
        """The error, if we ended it before its last answer had arrived."""
        self._decline = decline
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
        self._head_timeout = loop.call_later(self._head_s, self.force_close)

    def end_soon(self) -> None:
        """Close it soon without reading to its end: its client hung up, or its session is over."""
        asyncio.get_running_loop().call_later(CLOSE_S, self._end, self._share)

    def _end(self, share: ParsingShare) -> None:
        if self._tcp is None or self._share is not share:  # it serves another session by now
            return
        code = _socket_of(self._tcp).getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code or self._tcp.get_write_buffer_size():
            self._lost_answer = ConnectionResetError(
                code or errno.ECONNRESET, "the client has hung up"
            )
        self._tcp.abort()

    def data_received(self, data: bytes) -> None:
        """Parse data, charge its session for the time, and fail a body that is followed by no HTTP.

        aiohttp queues such an error behind the request, which waits for the rest of its body and so
        would never be answered.
        """
        begun = time.thread_time()
        super().data_received(data)
        owed_s = self._share.charge(time.thread_time() - begun, again=not data)
        self._owed_s += min(owed_s, MOST_OWED_S / 2)  # it may have been a garbage collection
        if not self.known and (pause_s := self._share.pause_s()):
            self.pause(pause_s)  # only this one: others that have sent no key yet may be honest
        if self._owed_s > MOST_OWED_S and self.transport is not None:
            log.warning("connection_too_costly", known=self.known)
            asyncio.get_running_loop().call_soon(self.transport.abort)
            self._owed_s = -inf
        if not self._messages:
            return
        self._end_head_timeout()
        self._owed_s = 0.0
        message, body = self._messages[-1]
        if isinstance(message, RawRequestMessage):
            self._latest_body = body
        elif self._latest_body is not None and not self._latest_body.is_eof():
            self._latest_body.set_exception(web.RequestPayloadError(message.message))
            self._latest_body = None

    def assign(self, share: ParsingShare, most: int) -> None:
        """Assign it to a session, which is charged for its bytes from now on.

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
            self._end_pause()

    def pause(self, seconds: float) -> None:
        """Read and parse nothing for `seconds`."""
        if self._pause is None and self.transport is not None:
            self._pause_transport_reading()
            self._pause = asyncio.get_running_loop().call_later(seconds, self._end_pause)

    def _end_pause(self) -> None:
        """Read on, or begin another pause if the session is to pause longer by now."""
        if self._pause is None:
            return
        self._pause.cancel()
        self._pause = None
        if pause_s := self._share.pause_s():
            self.pause(pause_s)
        elif self._read_on:
            self._read_on = False
            self.resume_reading()
        elif not self._reading_paused and not self._buffer_paused:
            self._resume_transport_reading()

    def resume_reading(self, resume_parser: bool = True) -> None:
        """Let aiohttp parse on when it has room; during a pause of the session, do so later."""
        if resume_parser and self._pause is not None:
            self._read_on = True
        else:
            super().resume_reading(resume_parser)

    def _resume_transport_reading(self) -> None:
        if self._pause is None:
            super()._resume_transport_reading()

    def _end_head_timeout(self) -> None:
        if self._head_timeout is not None:
            self._head_timeout.cancel()
            self._head_timeout = None

    def connection_lost(self, exc: BaseException | None) -> None:
        """Tell the client of the last request whether its answer may have arrived."""
        self._end_head_timeout()
        if self._tcp is not None:
            self._hang_ups.forget(_socket_of(self._tcp).fileno())
            self._tcp = None
        exc = exc or self._lost_answer
        self._share.connections.discard(self)
        if self._pause is not None:
            self._pause.cancel()
            self._pause = None
        super().connection_lost(exc)
        if self.client is not None:
            self.client.connection_lost(exc)
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
        """Answer bytes that are not HTTP, or a failure of ours; then end the connection."""
        if isinstance(exc, ConnectionError):  # the client has gone
            raise exc
        if status >= 500:
            log.error("gateway_failed", path=request.path, exc_info=exc)
        if request.writer.output_size > 0:
            msg = "a part of the answer is written"
            raise ConnectionError(msg)
        response = self._decline(request, status, message or "the gateway failed")
        response.force_close()
        return response


def _socket_of(transport: asyncio.Transport) -> socket.socket:
    return cast(socket.socket, transport.get_extra_info("socket"))
