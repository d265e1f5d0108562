"""The calls of one session's process over HTTP, and their replies.

A call is one occurrence of a request. Clients retry, so several HTTP requests may wait for one
call. They are matched to calls only here, and the log holds nothing of it. A call's name is the
request's digest, or its kind and idempotency key. An HTTP request

1. joins an open call of its name that no client waits for any more, or, if it is marked as a
   retry, one for which others wait;
2. gets the earlier reply of a call of its name, if that reply did not arrive, or if the request is
   marked as a retry and no other call was answered since;
3. else starts a new call: two equal concurrent requests are two samples.

Requests of one idempotency key are one call. A client that hangs up cancels nothing. Replies with a
temporary failure (`TEMPORARY`) are not repeated.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress

from rollcall.consumers.environments.gateway.conversations import ConversationStore
from rollcall.consumers.environments.gateway.parsing_share import ParsingShare
from rollcall.schemas.agent_requests import AgentRequest, ErrorReply, Reply

KEPT_REPLIES = 64
"""Answered calls whose reply can be repeated; as many as a session may have open."""
TEMPORARY = frozenset({429, 503})
"""Statuses after which a retry is a new call."""


class TooManyOpen(Exception):
    """The error that no further call or connection is accepted now."""


class OpenCalls:
    """The number of open calls of a worker, and its limits."""

    def __init__(self, most: int = 4096, most_of_session: int = 64) -> None:
        self.most = most
        self.most_of_session = most_of_session
        self.count = 0

    def admit(self, of_session: int) -> None:
        """Count one more call beside `of_session` of its session. Raises TooManyOpen."""
        for open_, most, whose in (
            (of_session, self.most_of_session, "agent"),
            (self.count, self.most, "worker"),
        ):
            if open_ >= most:
                msg = f"{open_} requests of this {whose} are open, as many as may be"
                raise TooManyOpen(msg)
        self.count += 1


class Call:
    """One occurrence of a request, and the clients that wait for its reply."""

    __slots__ = ("clients", "confirmed", "keyed", "name", "received", "reply")

    def __init__(self, name: str, *, keyed: bool) -> None:
        self.name = name
        self.keyed = keyed
        self.clients: list[Client] = []
        """The clients that wait for the reply, or to which it is being written."""
        self.reply: Reply | None = None
        self.received = 0
        """The number of clients to which the reply was written without a known error."""
        self.confirmed = False
        """True if a client has proved that it has the reply."""

    def abandoned(self) -> bool:
        """Return True if no client has its reply and none waits for it."""
        return not self.clients and not self.received

    def answer(self, reply: Reply | None) -> None:
        """Give the reply to all clients; None if the endpoint is closed."""
        self.reply = reply
        for client in self.clients:
            client.answer(reply)


class Client:
    """One HTTP request, from the moment when its call is known."""

    __slots__ = ("_received", "_reply", "call")

    def __init__(self, call: Call) -> None:
        self.call = call
        self._received = False
        self._reply: asyncio.Future[Reply | None] = asyncio.get_running_loop().create_future()
        call.clients.append(self)
        if call.reply is not None:
            self.answer(call.reply)

    async def reply(self) -> Reply | None:
        """Return the reply of the call; None if the endpoint is closed or this client is gone."""
        return await self._reply

    async def answered_within(self, timeout_s: float) -> bool:
        """Wait for at most `timeout_s`; return True if `reply` returns at once now."""
        done, _ = await asyncio.wait([self._reply], timeout=timeout_s)
        return bool(done)

    def answer(self, reply: Reply | None) -> None:
        """Set the result of `reply`, once."""
        if not self._reply.done():
            self._reply.set_result(reply)

    def reply_written(self) -> None:
        """Record that the whole answer was passed to the connection."""
        self._leave()
        self._received = True
        self.call.received += 1

    def connection_lost(self, error: BaseException | None) -> None:
        """Record the end of the connection; after an error the last answer did not arrive."""
        self._leave()
        if error is None:
            self.confirm()
        elif self._received:
            self._received = False
            self.call.received -= 1
        self.answer(None)

    def confirm(self) -> None:
        """Record that an answer that was written has certainly arrived."""
        self.call.confirmed = self.call.confirmed or self._received

    def _leave(self) -> None:
        with suppress(ValueError):
            self.call.clients.remove(self)


class GatewayEndpoint:
    """Implements `rollcall.sandbox.host.AgentEndpoint` for one session, on one event loop."""

    def __init__(
        self,
        url: str,
        key: str,
        policies: Iterable[str],
        task: Mapping[str, object],
        open_calls: OpenCalls,
        on_close: Callable[["GatewayEndpoint"], None],
    ) -> None:
        self.url = url
        self.key = key
        self.policies = tuple(policies)
        self.task = task
        """The task, as given to adapters."""
        self.conversations = ConversationStore()
        """The conversation up to each response, by its id: later requests may continue it."""
        self.share = ParsingShare()
        """The cost of parsing its requests."""
        self.closed = False
        self._open_calls = open_calls
        self._on_close = on_close
        self._open: dict[Call, AgentRequest] = {}
        """Open calls, in order of arrival."""
        self._answered: deque[Call] = deque(maxlen=KEPT_REPLIES)
        """Answered calls, in order of their replies."""
        self._changed = asyncio.Event()

    def open_requests(self) -> list[AgentRequest]:
        """Return the requests without a reply, in order of arrival, with duplicates."""
        self._changed.clear()
        return list(self._open.values())

    def shorten(self, request: AgentRequest, short: AgentRequest) -> None:
        """Replace a request, the same object that `open_requests` returned, by a shorter copy."""
        for call, each in self._open.items():
            if each is request:
                self._open[call] = short

    def waiting_clients(self) -> int:
        """Count the clients that wait for a reply; fewer than calls if clients have gone."""
        return sum(len(call.clients) for call in self._open)

    async def wait(self, timeout_s: float | None) -> None:
        """Wait for a request that `open_requests` has not returned, for `wake` or for `close`."""
        if timeout_s is None:
            await self._changed.wait()
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._changed.wait()

    def wake(self) -> None:
        """End that wait, or the next one before `open_requests`."""
        self._changed.set()

    def answer(self, reply: Reply) -> None:
        """Answer the first open call with the reply's digest. Raises KeyError if there is none."""
        call = next((call for call, request in self._open.items() if request.d == reply.d), None)
        if call is None:
            raise KeyError(reply.d)
        self._end(call)
        if not (isinstance(reply, ErrorReply) and reply.status in TEMPORARY):
            self._keep_for_retries(call)
        call.answer(reply)

    def _keep_for_retries(self, call: Call) -> None:
        # Rule 2 repeats a confirmed reply only while it is the latest.
        for done in [each for each in self._answered if each.confirmed and not each.keyed]:
            self._answered.remove(done)
        self._answered.append(call)

    async def close(self) -> None:
        """End all open calls without a reply, and accept no more. May be called twice."""
        self.closed = True
        for call in tuple(self._open):
            self._end(call)
            call.answer(None)
        self._answered.clear()
        self._changed.set()
        self._on_close(self)

    def attach(self, request: AgentRequest, *, retry: bool = False, key: str = "") -> Client:
        """Find the call of a request, or start one. Raises TooManyOpen."""
        name = f"{request.kind} {key}" if key else request.d
        call = self._existing_call(name, retry=retry, keyed=bool(key))
        return Client(call or self._start(Call(name, keyed=bool(key)), request))

    def _existing_call(self, name: str, *, retry: bool, keyed: bool) -> Call | None:
        # Rules 1 and 2 of the module's docstring; None is rule 3.
        waiting = [call for call in self._open if call.name == name]
        answered = [call for call in self._answered if call.name == name]
        for call in (*waiting, *answered):
            if call.abandoned():
                return call
        if waiting and (retry or keyed):
            return min(waiting, key=lambda call: len(call.clients))
        if answered and (keyed or (retry and answered[-1] is self._answered[-1])):
            return answered[-1]
        return None

    def _start(self, call: Call, request: AgentRequest) -> Call:
        self._open_calls.admit(len(self._open))
        self._open[call] = request
        self._changed.set()
        return call

    def _end(self, call: Call) -> None:
        del self._open[call]
        self._open_calls.count -= 1
