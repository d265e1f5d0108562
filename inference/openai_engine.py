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
from rollcall.inference.openai_api import VERSION, Api, ServerRequest, answer_without_sampling
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

    def set_now(self, now_ms: int) -> None:
        self._ahead_s = now_ms / 1000 - time.monotonic()

    def left_s(self, call: ModelCall) -> float:
        """Return the time until the call's deadline to begin."""
        return call.not_after_ms / 1000 - (time.monotonic() + self._ahead_s)


@dataclass(slots=True)
class _RequestInFlight:
    call: ModelCall
    task: "asyncio.Future[None] | None" = None
    over: bool = False
    """True if its answer is no longer needed."""


class RequestsInFlight:
    """Requests in flight, on an event loop in a separate thread."""

    def __init__(self, server: OpenAIServer, api: Api, log_time: LogTime) -> None:
        self._server, self._api, self._time = server, api, log_time
        self._done: SimpleQueue[tuple[_RequestInFlight, Body]] = SimpleQueue()
        self._in_flight: dict[bytes, _RequestInFlight] = {}
        self._loop = asyncio.new_event_loop()
        self._ended = asyncio.Event()
        self._thread = Thread(target=self._run, name="openai", daemon=True)

    def __len__(self) -> int:
        return len(self._in_flight)

    def send(self, request: ServerRequest) -> None:
        """Send a request."""
        if not self._thread.is_alive():
            self._thread.start()
        sent = self._in_flight[request.call.command_id] = _RequestInFlight(request.call)
        self._loop.call_soon_threadsafe(self._start, sent, request)

    def collect(self) -> list[EngineAnswer]:
        """Return the answers since the last call of this method."""
        answers: list[EngineAnswer] = []
        while True:
            try:
                sent, body = self._done.get_nowait()
            except Empty:
                return answers
            if not sent.over:
                del self._in_flight[sent.call.command_id]
                answers.append(EngineAnswer(sent.call, body))

    def abort(self, dropped: Callable[[ModelCall], bool]) -> None:
        """Cancel requests; they get no answer."""
        for command_id, sent in list(self._in_flight.items()):
            if dropped(sent.call):
                sent.over = True
                del self._in_flight[command_id]
                self._loop.call_soon_threadsafe(self._cancel, sent)

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

    def _start(self, sent: _RequestInFlight, request: ServerRequest) -> None:
        sent.task = self._loop.create_task(self._answer(sent, request))

    def _cancel(self, sent: _RequestInFlight) -> None:
        if sent.task is not None:
            sent.task.cancel()

    async def _answer(self, sent: _RequestInFlight, request: ServerRequest) -> None:
        body: Body
        try:
            body = await self._client.ask(
                self._api.path,
                request.body,
                lambda payload: self._api.read_answer(request, payload),
                lambda: self._time.left_s(request.call),
            )
        except WorkFailed as error:
            body = CallFailed(error.code, str(error), error.retriable)
        except Exception as error:  # parsing foreign answers may raise anything
            body = CallFailed(FailureCode.BAD_ANSWER, describe_exception(error), True)
        self._done.put((sent, body))


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
        self._in_flight = RequestsInFlight(server, api, self._time)
        weakref.finalize(self, self._in_flight.end)

    def add(self, call: ModelCall) -> None:
        self._waiting.add(call, self.version)

    def busy(self) -> bool:
        return bool(self._waiting.ready or len(self._in_flight))

    def step(self) -> list[EngineAnswer]:
        """Send requests for waiting calls; return the answers that have come."""
        answers = self._in_flight.collect()
        while self._waiting.ready and len(self._in_flight) < self._concurrency:
            call = self._waiting.ready.popleft()
            body = self._send(call)
            if body is not None:
                answers.append(EngineAnswer(call, body))
        return answers

    def expire(self, now_ms: int) -> list[ModelCall]:
        """See the protocol; also takes `now_ms` as the log's time."""
        self._time.set_now(now_ms)
        return self._waiting.expire(now_ms)

    def abort(self, rollout_id: str, attempt: int) -> None:
        self._waiting.abort(rollout_id, attempt)
        self._in_flight.abort(lambda call: is_of(call, rollout_id, attempt))

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

    def _send(self, call: ModelCall) -> Body | None:
        """Send the request of a call; return its answer if no request is needed."""
        try:
            request = self._api.request_for(call)
            body = answer_without_sampling(self._api, request)
        except WorkFailed as error:
            return CallFailed(error.code, str(error), error.retriable)
        except Exception as error:  # a chat template is foreign code, and so are its tools
            return CallFailed(FailureCode.NOT_RENDERABLE, describe_exception(error), False)
        if body is None:
            self._in_flight.send(request)
        return body
