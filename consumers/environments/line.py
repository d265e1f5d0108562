"""What the process of one session asks over HTTP, and what it is told.

A call is one occurrence of an ask. Clients try again, so several requests may wait for one call.
Which they are is decided here alone, and nothing of it is in the log. A call's name is its ask's
digest, or the request's kind and idempotency key. A request

1. waits for an open call of its name for which nobody waits any more, or, if it says that it is a
   retry, for one for which others wait;
2. is told again what a call of its name was told, if that did not arrive, or if it says that it is
   a retry and no other call was answered since;
3. else is a call of its own: two equal requests side by side are two samples.

Requests of one idempotency key are one call. A client that hangs up cancels nothing. What failed
for now (`FOR_NOW`) is not told again.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress

from consumers.environments.held_conversations import HeldConversations
from consumers.environments.parsing_share import ParsingShare
from schemas.asks import Ask, ErrorReply, Reply

REMEMBERED = 64
"""Answered calls that a line can tell again; as many as may be open side by side."""
FOR_NOW = frozenset({429, 503})
"""Statuses after which a retry is to be a new call."""


class TooManyOpen(Exception):
    """No further call is taken now."""


class OpenCalls:
    """How many calls of a worker are open, and how many may be."""

    def __init__(self, most: int = 4096, most_of_session: int = 64) -> None:
        self.most = most
        self.most_of_session = most_of_session
        self.count = 0

    def admit(self, of_session: int) -> None:
        """Count one more, beside so many of its session. Raises TooManyOpen."""
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
        """Who waits for it, or is being written to."""
        self.reply: Reply | None = None
        self.arrived = 0
        """How many of them it has reached, as far as anybody knows."""
        self.settled = False
        """Whether one of them has shown that it has the reply."""

    def forsaken(self) -> bool:
        """Whether nobody has its reply and nobody waits for it."""
        return not self.clients and not self.arrived

    def tell(self, reply: Reply | None) -> None:
        self.reply = reply
        for client in self.clients:
            client.tell(reply)


class Client:
    """One request, from the moment it is known which call it is."""

    __slots__ = ("_arrived", "_told", "call")

    def __init__(self, call: Call) -> None:
        self.call = call
        self._arrived = False
        self._told: asyncio.Future[Reply | None] = asyncio.get_running_loop().create_future()
        call.clients.append(self)
        if call.reply is not None:
            self.tell(call.reply)

    async def reply(self) -> Reply | None:
        """What the call is told; None when its line is closed or this client is gone."""
        return await self._told

    async def told_within(self, timeout_s: float) -> bool:
        """Wait so long at most; whether `reply` comes at once now."""
        done, _ = await asyncio.wait([self._told], timeout=timeout_s)
        return bool(done)

    def tell(self, reply: Reply | None) -> None:
        if not self._told.done():
            self._told.set_result(reply)

    def written(self) -> None:
        """All of the answer was handed to the connection."""
        self._leave()
        self._arrived = True
        self.call.arrived += 1

    def lost(self, error: BaseException | None) -> None:
        """The connection is gone. With an error, what was written to it last did not arrive."""
        self._leave()
        if error is None:
            self.settle()
        elif self._arrived:
            self._arrived = False
            self.call.arrived -= 1
        self.tell(None)

    def settle(self) -> None:
        """What was written to it has arrived for certain."""
        self.call.settled = self.call.settled or self._arrived

    def _leave(self) -> None:
        with suppress(ValueError):
            self.call.clients.remove(self)


class GatewayLine:
    """One session's end of the gateway: fulfils `sandbox.host.Line` on one event loop."""

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
        """What adapters are told that they are to do."""
        self.conversations = HeldConversations()
        """What was said up to and with a response, by its id: later requests may go on from it."""
        self.share = ParsingShare()
        """What the parsing of its requests costs."""
        self.over = False
        self._open_calls = open_calls
        self._closed = closed
        self._open: dict[Call, Ask] = {}
        """In order of arrival."""
        self._told: deque[Call] = deque(maxlen=REMEMBERED)
        """In order of their replies."""
        self._changed = asyncio.Event()

    def asked(self) -> list[Ask]:
        """The asks that wait for a reply, in order of arrival; equal ones each count."""
        self._changed.clear()
        return list(self._open.values())

    def shorten(self, ask: Ask, short: Ask) -> None:
        """Hold this in place of one that `asked` has shown, the very object."""
        for call, asked in self._open.items():
            if asked is ask:
                self._open[call] = short

    def waiting(self) -> int:
        """How many requests wait for a reply; fewer than asks where clients have gone."""
        return sum(len(call.clients) for call in self._open)

    async def wait(self, timeout_s: float | None) -> None:
        """Return when there is an ask that `asked` has not shown, when it is woken or closed."""
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
        """Answer the first open call of the reply's digest; raises KeyError when there is none."""
        call = next((call for call, ask in self._open.items() if ask.d == reply.d), None)
        if call is None:
            raise KeyError(reply.d)
        self._end(call)
        if not (isinstance(reply, ErrorReply) and reply.status in FOR_NOW):
            self._tell_again(call)
        call.tell(reply)

    def _tell_again(self, call: Call) -> None:
        """Remember it, and no more those that would not be told again now."""
        for settled in [each for each in self._told if each.settled and not each.keyed]:
            self._told.remove(settled)
        self._told.append(call)

    async def close(self) -> None:
        """End all that is open without a reply, and take nothing any more. May be called twice."""
        self.over = True
        for call in tuple(self._open):
            self._end(call)
            call.tell(None)
        self._told.clear()
        self._changed.set()
        self._closed(self)

    def attach(self, ask: Ask, *, retry: bool = False, key: str = "") -> Client:
        """Find the call that a request is, or begin one. Raises TooManyOpen."""
        name = f"{ask.kind} {key}" if key else ask.d
        call = self._same(name, retry=retry, keyed=bool(key))
        return Client(call or self._begin(Call(name, keyed=bool(key)), ask))

    def _same(self, name: str, *, retry: bool, keyed: bool) -> Call | None:
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

    def _begin(self, call: Call, ask: Ask) -> Call:
        self._open_calls.admit(len(self._open))
        self._open[call] = ask
        self._changed.set()
        return call

    def _end(self, call: Call) -> None:
        del self._open[call]
        self._open_calls.count -= 1
