"""An engine on a server with the OpenAI API: calls become requests, sent from a separate thread.

`step` sends waiting calls and collects answers, so the loop that drives it need not spin. The
server's weights are not under our control: every answer carries version 0, as those of a script do,
and a policy whose weights change cannot be served.
"""

import asyncio
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from threading import Thread
from typing import NoReturn

import aiohttp

from rollcall.inference.engine import EngineAnswer
from rollcall.inference.openai_api import VERSION, Api, ServerRequest, counted
from rollcall.inference.openai_client import OpenAIClient, OpenAIServer
from rollcall.inference.waiting_calls import WaitingCalls, is_of
from rollcall.schemas.errors import FailureCode, Unfit, WorkFailed
from rollcall.schemas.messages import CallFailed, ModelAnswered, ModelCall, PolicyVersion
from rollcall.schemas.untrusted_text import describe_exception

WAIT_S = 0.01
ENDING_S = 2.0
"""The time that the thread may take to close its connections."""

Body = ModelAnswered | CallFailed


class LogTime:
    """The log's time as last reported, continued by this machine's monotonic clock."""

    def __init__(self) -> None:
        self._ahead_s = time.time() - time.monotonic()

    def saw(self, now_ms: int) -> None:
        self._ahead_s = now_ms / 1000 - time.monotonic()

    def left_s(self, call: ModelCall) -> float:
        """Return the time until the call's deadline to begin."""
        return call.not_after_ms / 1000 - (time.monotonic() + self._ahead_s)


@dataclass(slots=True)
class _Flight:
    call: ModelCall
    task: "asyncio.Future[None] | None" = None
    over: bool = False
    """True if its answer is no longer needed."""


class Flights:
    """Requests in flight, on an event loop in a separate thread."""

    def __init__(self, server: OpenAIServer, api: Api, log_time: LogTime) -> None:
        self._server, self._api, self._time = server, api, log_time
        self._landed: SimpleQueue[tuple[_Flight, Body]] = SimpleQueue()
        self._flights: dict[bytes, _Flight] = {}
        self._loop = asyncio.new_event_loop()
        self._ended = asyncio.Event()
        self._thread = Thread(target=self._run, name="openai", daemon=True)

    def __len__(self) -> int:
        return len(self._flights)

    def begin(self, asked: ServerRequest) -> None:
        """Send a request."""
        if not self._thread.is_alive():
            self._thread.start()
        flight = self._flights[asked.call.command_id] = _Flight(asked.call)
        self._loop.call_soon_threadsafe(self._take_off, flight, asked)

    def landed(self) -> list[EngineAnswer]:
        """Return the answers since the last call of this method."""
        answers: list[EngineAnswer] = []
        while True:
            try:
                flight, body = self._landed.get_nowait()
            except Empty:
                return answers
            if not flight.over:
                del self._flights[flight.call.command_id]
                answers.append(EngineAnswer(flight.call, body))

    def abort(self, gone: Callable[[ModelCall], bool]) -> None:
        """Cancel requests; they get no answer."""
        for command_id, flight in list(self._flights.items()):
            if gone(flight.call):
                flight.over = True
                del self._flights[command_id]
                self._loop.call_soon_threadsafe(self._call_off, flight)

    def end(self) -> None:
        """Cancel everything and end the thread."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._ended.set)
            self._thread.join(ENDING_S)
        elif not self._loop.is_closed():
            self._loop.close()

    # On the thread

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._serve())
        finally:
            self._loop.close()

    async def _serve(self) -> None:
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector, trust_env=False) as session:
            self._client = OpenAIClient(self._server, session)
            await self._ended.wait()
            tasks = asyncio.all_tasks() - {asyncio.current_task()}
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _take_off(self, flight: _Flight, asked: ServerRequest) -> None:
        flight.task = self._loop.create_task(self._fly(flight, asked))

    def _call_off(self, flight: _Flight) -> None:
        if flight.task is not None:
            flight.task.cancel()

    async def _fly(self, flight: _Flight, asked: ServerRequest) -> None:
        body: Body
        try:
            body = await self._client.ask(
                self._api.path,
                asked.body,
                lambda payload: self._api.answered(asked, payload),
                lambda: self._time.left_s(asked.call),
            )
        except WorkFailed as error:
            body = CallFailed(error.code, str(error), error.retriable)
        except Exception as error:  # parsing foreign answers may raise anything
            body = CallFailed(FailureCode.BAD_ANSWER, describe_exception(error), True)
        self._landed.put((flight, body))


class OpenAIEngine:
    """An engine for a policy that is a server's model; see `rollcall.inference.engine.Engine`.

    At most `concurrency` requests are in flight; the other calls wait here.
    """

    def __init__(
        self, policy_id: str, server: OpenAIServer, api: Api, *, concurrency: int = 64
    ) -> None:
        self.policy_id = policy_id
        self.version = VERSION
        self.wait_s = WAIT_S
        self._server, self._api, self._concurrency = server, api, concurrency
        self._time = LogTime()
        self._waiting = WaitingCalls()
        self._flights = Flights(server, api, self._time)
        weakref.finalize(self, self._flights.end)

    def add(self, call: ModelCall) -> None:
        self._waiting.add(call, self.version)

    def busy(self) -> bool:
        return bool(self._waiting.ready or len(self._flights))

    def step(self) -> list[EngineAnswer]:
        """Send requests for waiting calls; return the answers that have come."""
        answers = self._flights.landed()
        while self._waiting.ready and len(self._flights) < self._concurrency:
            call = self._waiting.ready.popleft()
            body = self._begun(call)
            if body is not None:
                answers.append(EngineAnswer(call, body))
        return answers

    def expire(self, now_ms: int) -> list[ModelCall]:
        """See the protocol; also takes `now_ms` as the log's time."""
        self._time.saw(now_ms)
        return self._waiting.expire(now_ms)

    def abort(self, rollout_id: str, attempt: int) -> None:
        self._waiting.abort(rollout_id, attempt)
        self._flights.abort(lambda call: is_of(call, rollout_id, attempt))

    def replica(self) -> "OpenAIEngine":
        """Return another engine; it serves announced versions, of which there are none here."""
        return OpenAIEngine(self.policy_id, self._server, self._api, concurrency=self._concurrency)

    def stage(self, version: PolicyVersion) -> NoReturn:
        """Raise Unfit: announced weights cannot be those of the server."""
        msg = (
            f"version {version.version} of {self.policy_id!r} is announced, so its weights change, "
            f"and those of {self._server.model!r} at {self._server.base_url} are not ours to load; "
            "serve that policy by the engine transformers, or give this server a policy id of "
            "its own"
        )
        raise Unfit(msg)

    def adopt(self) -> None:
        """Do nothing, as nothing is ever staged."""

    def _begun(self, call: ModelCall) -> Body | None:
        """Send the request of a call; return its answer if no request is needed."""
        try:
            asked = self._api.asked(call)
            body = counted(self._api, asked)
        except WorkFailed as error:
            return CallFailed(error.code, str(error), error.retriable)
        except Exception as error:  # a chat template is foreign code, and so are its tools
            return CallFailed(FailureCode.NOT_RENDERABLE, describe_exception(error), False)
        if body is None:
            self._flights.begin(asked)
        return body
