"""The calls of one session's process over HTTP, and their replies.

A call is one occurrence of an ask. Clients retry, so several requests may wait for one call.
Requests are matched to calls only here, and nothing of it is in the log. A call's name is its ask's
digest, or the request's kind and idempotency key. A request

1. joins an open call of its name which no client waits for any more, or, if it is marked as a
   retry, one which others wait for;
2. gets the earlier reply of a call of its name, if that reply did not arrive, or if the request is
   marked as a retry and no other call was answered since;
3. else is a new call: two equal requests side by side are two samples.

Requests of one idempotency key are one call. A client that hangs up cancels nothing. Replies with a
temporary failure (`FOR_NOW`) are not repeated.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress

from rollcall.consumers.environments.gateway.held_conversations import HeldConversations
from rollcall.consumers.environments.gateway.parsing_share import ParsingShare
from rollcall.schemas.agent_requests import AgentRequest, ErrorReply, Reply

REMEMBERED = 64
"""Answered calls whose reply a line can repeat; as many as may be open side by side."""
FOR_NOW = frozenset({429, 503})
"""Statuses after which a retry is a new call."""


class TooManyOpen(Exception):
    """The error that no further call is accepted now."""


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
    """One occurrence of an ask, and the requests that wait for its reply."""

    __slots__ = ("arrived", "clients", "keyed", "name", "reply", "settled")

    def __init__(self, name: str, *, keyed: bool) -> None:
        self.name = name
        self.keyed = keyed
        self.clients: list[Client] = []
        """The clients that wait for it, or are being written to."""
        self.reply: Reply | None = None
        self.arrived = 0
        """The number of clients that the reply has reached, as far as is known."""
        self.settled = False
        """True if one of them has proved that it has the reply."""

    def forsaken(self) -> bool:
        """Return True if no client has its reply and none waits for it."""
        return not self.clients and not self.arrived

    def tell(self, reply: Reply | None) -> None:
        self.reply = reply
        for client in self.clients:
            client.tell(reply)


class Client:
    """One request, from the moment when its call is known."""

    __slots__ = ("_arrived", "_told", "call")

    def __init__(self, call: Call) -> None:
        self.call = call
        self._arrived = False
        self._told: asyncio.Future[Reply | None] = asyncio.get_running_loop().create_future()
        call.clients.append(self)
        if call.reply is not None:
            self.tell(call.reply)

    async def reply(self) -> Reply | None:
        """Return the reply of the call; None if its line is closed or this client is gone."""
        return await self._told

    async def told_within(self, timeout_s: float) -> bool:
        """Wait for at most `timeout_s`; return True if `reply` returns at once now."""
        done, _ = await asyncio.wait([self._told], timeout=timeout_s)
        return bool(done)

    def tell(self, reply: Reply | None) -> None:
        if not self._told.done():
            self._told.set_result(reply)

    def written(self) -> None:
        """Note that the whole answer was passed to the connection."""
        self._leave()
        self._arrived = True
        self.call.arrived += 1

    def lost(self, error: BaseException | None) -> None:
        """Note the end of the connection; after an error the last answer did not arrive."""
        self._leave()
        if error is None:
            self.settle()
        elif self._arrived:
            self._arrived = False
            self.call.arrived -= 1
        self.tell(None)

    def settle(self) -> None:
        """Note that the answer has certainly arrived."""
        self.call.settled = self.call.settled or self._arrived

    def _leave(self) -> None:
        with suppress(ValueError):
            self.call.clients.remove(self)


class GatewayLine:
    """One session's end of the gateway: `rollcall.sandbox.host.AgentEndpoint` on one event loop."""

    def __init__(
        self,
        url: str,
        key: str,
        policies: Iterable[str],
        task: Mapping[str, object],
        open_calls: OpenCalls,
        closed: Callable[["GatewayLine"], None],
    ) -> None:
        self.url = url
        self.key = key
        self.policies = tuple(policies)
        self.task = task
        """The task, as given to adapters."""
        self.conversations = HeldConversations()
        """The conversation up to each response, by its id: later requests may continue it."""
        self.share = ParsingShare()
        """The cost of parsing its requests."""
        self.over = False
        self._open_calls = open_calls
        self._closed = closed
        self._open: dict[Call, AgentRequest] = {}
        """Open calls, in order of arrival."""
        self._told: deque[Call] = deque(maxlen=REMEMBERED)
        """Answered calls, in order of their replies."""
        self._changed = asyncio.Event()

    def asked(self) -> list[AgentRequest]:
        """Return the asks without a reply, in order of arrival; equal ones each count."""
        self._changed.clear()
        return list(self._open.values())

    def shorten(self, request: AgentRequest, short: AgentRequest) -> None:
        """Keep `short` in place of an ask returned by `asked`, which is compared by identity."""
        for call, asked in self._open.items():
            if asked is request:
                self._open[call] = short

    def waiting(self) -> int:
        """Count the requests that wait for a reply; fewer than asks if clients have gone."""
        return sum(len(call.clients) for call in self._open)

    async def wait(self, timeout_s: float | None) -> None:
        """Wait for an ask that `asked` has not returned, for `wake` or for `close`."""
        if timeout_s is None:
            await self._changed.wait()
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._changed.wait()

    def wake(self) -> None:
        """End that wait, or the next one before `asked`."""
        self._changed.set()

    def tell(self, reply: Reply) -> None:
        """Answer the first open call with the reply's digest. Raises KeyError if there is none."""
        call = next((call for call, request in self._open.items() if request.d == reply.d), None)
        if call is None:
            raise KeyError(reply.d)
        self._end(call)
        if not (isinstance(reply, ErrorReply) and reply.status in FOR_NOW):
            self._tell_again(call)
        call.tell(reply)

    def _tell_again(self, call: Call) -> None:
        """Keep a call for repeats, and drop those that would not be repeated any more."""
        for settled in [each for each in self._told if each.settled and not each.keyed]:
            self._told.remove(settled)
        self._told.append(call)

    async def close(self) -> None:
        """End all open calls without a reply, and take no more. May be called twice."""
        self.over = True
        for call in tuple(self._open):
            self._end(call)
            call.tell(None)
        self._told.clear()
        self._changed.set()
        self._closed(self)

    def attach(self, request: AgentRequest, *, retry: bool = False, key: str = "") -> Client:
        """Find the call of a request, or begin one. Raises TooManyOpen."""
        name = f"{request.kind} {key}" if key else request.d
        call = self._same(name, retry=retry, keyed=bool(key))
        return Client(call or self._begin(Call(name, keyed=bool(key)), request))

    def _same(self, name: str, *, retry: bool, keyed: bool) -> Call | None:
        # Rules 1 and 2 of the module's docstring; None is rule 3.
        waiting = [call for call in self._open if call.name == name]
        told = [call for call in self._told if call.name == name]
        for call in (*waiting, *told):
            if call.forsaken():
                return call
        if waiting and (retry or keyed):
            return min(waiting, key=lambda call: len(call.clients))
        if told and (keyed or (retry and told[-1] is self._told[-1])):
            return told[-1]
        return None

    def _begin(self, call: Call, request: AgentRequest) -> Call:
        self._open_calls.admit(len(self._open))
        self._open[call] = request
        self._changed.set()
        return call

    def _end(self, call: Call) -> None:
        del self._open[call]
        self._open_calls.count -= 1
