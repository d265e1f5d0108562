"""Reading of large request bodies without blocking the other sessions of the gateway.

Parsing a body of many megabytes may take seconds, in which the event loop would do nothing else. So
a separate process parses them, one at a time, and a thread beside the loop copies the result.
Copying blocks the loop a little too, so a session has one large body read at a time, and waits
between two of them long enough that copying takes only a small share of the time.
"""

import asyncio
import os
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from subprocess import DEVNULL
from typing import Any

import orjson
import structlog

from rollcall.inference.dialects.dialect import Conversations, Declined, Dialect, ParsedRequest
from rollcall.inference.dialects.request_serialisation import request_of, serialise_conversations

READ_S = 20.0
"""Time limit for reading a body, while the processor has other work too."""
COPY_SHARE = 1 / 300
"""Share of the time for copying a session's large bodies, beyond FREE_S for each."""
FREE_S = 0.002
READ_SHARE = 1 / 4
"""Share of the time for which the process parses bodies of one session."""
MOST_EARLIER = 64
"""The most earlier responses that one body may name."""
CHECK_S = 1.0
"""Interval at which a queued body's client is checked for having gone."""
ANSWER_BYTES = 65_536
MODULE = "rollcall.consumers.environments.gateway.body_process"

log = structlog.get_logger()


class LargeBodies:
    """Reads the large bodies of one gateway, on its loop."""

    def __init__(self, within_s: float = READ_S) -> None:
        self._within_s = within_s
        self._process: asyncio.subprocess.Process | None = None
        self._orders: socket.socket | None = None
        """The socket to the process: a packet for each order, and one for its answer."""
        self._reading = asyncio.Lock()
        self._turns: dict[str, _Turns] = {}

    @property
    def pid(self) -> int | None:
        """The process id, while there is a process."""
        return self._process.pid if self._process is not None else None

    async def read(
        self,
        session: str,
        dialect: Dialect,
        body: bytearray,
        policies: Sequence[str],
        earlier: Conversations,
        gone: Callable[[], bool],
    ) -> ParsedRequest:
        """Read a body in the session's turn, and empty the buffer. Raises Declined.

        Raises ConnectionError if the client is gone by then.
        """
        turns = _Turns() if gone() else self._turns.setdefault(session, _Turns())
        async with _turn(turns.lock, gone):
            while not gone() and (left := turns.due - time.monotonic()) > 0:
                await asyncio.sleep(min(left, CHECK_S))
            with _File(body) as file:
                body.clear()  # the file holds it now
                length = await self._read(dialect, policies, earlier, file, turns, gone)
                request, seconds = await asyncio.to_thread(_copied, file.fileno(), length)
                turns.charge(max(0.0, seconds - FREE_S), COPY_SHARE)
                return request

    def forget(self, session: str) -> None:
        """Drop the state of a session that has ended."""
        self._turns.pop(session, None)

    async def close(self) -> None:
        """End the process. May be called twice."""
        process, self._process = self._process, None
        if self._orders is not None:
            self._orders.close()
            self._orders = None
        if process is not None:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    async def _read(
        self,
        dialect: Dialect,
        policies: Sequence[str],
        earlier: Conversations,
        file: "_File",
        turns: "_Turns",
        gone: Callable[[], bool],
    ) -> int:
        """Parse the body in the process, in place; return the result's length. Raises Declined.

        Raises ConnectionError if the client has gone before the process has the body.
        """
        known: dict[str, Sequence[Any]] = {}
        unknown: list[str] = []
        # The process names one earlier response that it needs; the order is repeated with it.
        while len(known) + len(unknown) <= MOST_EARLIER:
            order = orjson.dumps((dialect.name, policies, unknown))
            with _File(serialise_conversations(known)) as before:
                async with _turn(self._reading, gone):
                    started = time.monotonic()
                    answer = await self._send_order(order, file.fileno(), before.fileno())
                    turns.charge(time.monotonic() - started, READ_SHARE)
            if "length" in answer:
                return int(answer["length"])
            if "needs" not in answer:
                status, code, message = answer["status"], answer["code"], answer["message"]
                raise Declined(status, code, message, param=answer["param"])
            name = answer["needs"]
            if name in earlier:
                known[name] = earlier[name]
            else:
                unknown.append(name)
        msg = f"a large body may refer to {MOST_EARLIER} responses; send their items instead"
        raise Declined(400, "invalid_request_error", msg, param="input")

    async def _send_order(self, order: bytes, *files: int) -> Mapping[str, Any]:
        """Return the answer of the process; without one, end the process and refuse the body."""
        orders = await self._started()
        answer = b""
        try:
            socket.send_fds(orders, [order], files)
            async with asyncio.timeout(self._within_s):
                answer = await asyncio.get_running_loop().sock_recv(orders, ANSWER_BYTES)
        except (TimeoutError, OSError) as error:
            log.warning("large_body_not_read", error=str(error) or type(error).__name__)
        finally:
            if not answer:
                await self.close()
        if answer:
            value: Mapping[str, Any] = orjson.loads(answer)
            return value
        msg = f"the body takes more than {self._within_s:g} s, or too much memory, to be read"
        code = "request_too_large"
        return {"status": 413, "code": code, "message": f"{msg}; send a smaller one", "param": None}

    async def _started(self) -> socket.socket:
        """Return the socket to the process; start the process if there is none."""
        if self._orders is None:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            ours.setblocking(False)
            self._orders = ours
            with theirs:
                self._process = await asyncio.create_subprocess_exec(
                    sys.executable,
                    "-P",
                    "-m",
                    MODULE,
                    str(theirs.fileno()),
                    stdin=DEVNULL,
                    stdout=DEVNULL,
                    pass_fds=[theirs.fileno()],
                    start_new_session=True,
                )
        return self._orders


@asynccontextmanager
async def _turn(lock: asyncio.Lock, gone: Callable[[], bool]) -> AsyncIterator[None]:
    """Hold the lock. Raises ConnectionError, without waiting further, if the client is gone.

    A queued body uses memory, and the lock may be held for long, also by bodies of others.
    """
    acquiring = asyncio.create_task(lock.acquire(), name="turn of a large body")
    try:
        while not gone() and not acquiring.done():
            await asyncio.wait([acquiring], timeout=CHECK_S)
        if gone():
            msg = "the client has gone before its body was read"
            raise ConnectionError(msg)
        yield
    finally:
        # A task that cannot be cancelled has finished, so it holds the lock.
        if not acquiring.cancel():
            lock.release()


class _Turns:
    """The time from which a session may have its next large body read."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.due = 0.0

    def charge(self, seconds: float, share: float) -> None:
        """Charge `seconds` of work that may take this share of the time."""
        self.due = max(self.due, time.monotonic()) + seconds / share


class _File:
    """Bytes in memory that can be passed to another process."""

    def __init__(self, content: bytes | bytearray) -> None:
        self._file = os.memfd_create("body")
        with memoryview(content) as view:
            written = 0
            while written < len(view):
                written += os.write(self._file, view[written:])

    def fileno(self) -> int:
        return self._file

    def __enter__(self) -> "_File":
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._file)


def _copied(file: int, length: int) -> tuple[ParsedRequest, float]:
    """Return the request, and the processor time of copying it, in seconds."""
    started = time.thread_time()
    request = request_of(os.pread(file, length, 0))
    return request, time.thread_time() - started
