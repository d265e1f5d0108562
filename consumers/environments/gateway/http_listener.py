"""The HTTP server behind one listening socket, and its limit of connections."""

import asyncio
import resource
import socket
from functools import partial

import structlog
from aiohttp import web

from rollcall.consumers.environments.gateway.connection import (
    CLOSE_S,
    Connection,
    DeclineRequest,
    HangUpWatcher,
    Serve,
)
from rollcall.consumers.environments.gateway.listening_socket import BACKLOG
from rollcall.consumers.environments.gateway.parsing_share import ParsingShare

ACCEPTED_AT_ONCE = 32
"""Connections that are accepted in one go, before the first of them is handled and may end others.

asyncio uses its backlog for this; without descriptors it tries as often, and logs each failure."""
RESERVED_DESCRIPTORS = 512
"""Descriptors for the log, files, boxes and processes of the worker."""
MOST_DESCRIPTORS = 65_536
"""The soft limit is raised to the hard one, up to this number."""

log = structlog.get_logger()


class HttpListener:
    """A listening socket, and all connections that it has accepted."""

    def __init__(self, server: asyncio.Server, http: "_HttpServer") -> None:
        self._server = server
        self._http = http
        self.stop = server.close
        """Stop listening."""

    @classmethod
    async def open(
        cls,
        listener: socket.socket,
        serve: Serve,
        decline: DeclineRequest,
        most: int,
        head_s: float,
    ) -> "HttpListener":
        """Accept up to `most` connections from now on, and own the socket.

        The head of a connection's first request has to arrive within `head_s` seconds.
        """
        http = _HttpServer(serve, decline, most=most, head_s=head_s)
        loop = asyncio.get_running_loop()
        server = await loop.create_server(http, sock=listener, backlog=ACCEPTED_AT_ONCE)
        listener.listen(BACKLOG)  # create_server has set the queue's length to its backlog
        return cls(server, http)

    async def close(self) -> None:
        """Stop, and end all connections once they are answered. May be called twice."""
        self.stop()
        self._http.pre_shutdown()  # ends idle connections, for which it need not wait
        await self._http.shutdown(CLOSE_S)
        self._http.hang_ups.close()

    def connections(self) -> list[web.RequestHandler]:
        """Return the open connections."""
        return self._http.connections


class _HttpServer(web.Server):
    """Accepts connections, up to a limit."""

    def __init__(self, serve: Serve, decline: DeclineRequest, *, most: int, head_s: float) -> None:
        super().__init__(serve)
        self.hang_ups = HangUpWatcher()
        self._make = partial(
            Connection,
            decline,
            head_s,
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

        This is the oldest that has never sent a valid key, else the new one.
        """
        super().connection_made(handler, transport)
        full = len(self.connections) > self._most
        if full:
            without_key = (
                each
                for each in self.connections
                if not getattr(each, "known", True) and each.connected  # not being closed already
            )
            oldest = next(without_key, handler)
            if oldest is not handler:
                oldest.force_close()
            else:  # later, since asyncio is still setting it up
                asyncio.get_running_loop().call_soon(transport.abort)
            if not self._full:
                log.warning("gateway_full", connections=self._most)
        self._full = full


def connection_limit() -> int:
    """Raise the soft limit of descriptors as far as possible; return the number for connections.

    A quarter of a small limit is kept for other uses.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = hard == resource.RLIM_INFINITY
    wanted = MOST_DESCRIPTORS if unlimited else min(hard, MOST_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        soft = wanted
    limit = MOST_DESCRIPTORS if soft == resource.RLIM_INFINITY else soft
    return max(1, min(limit - RESERVED_DESCRIPTORS, limit * 3 // 4))
