"""A server that speaks the OpenAI API over real HTTP, with the odd ways that such servers have."""

import asyncio
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Event, Thread
from typing import Any

from aiohttp import web

Body = dict[str, Any]
LOGPROB = -0.25


@dataclass(frozen=True)
class Reply:
    """What is sent back."""

    said: Any
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    keep: int | None = None
    """Only so many bytes of the body, and then the connection is gone."""
    until: Event | None = None
    """Not before this is set."""


Speak = Callable[[str, Body], Any]
"""Path and body to what is answered: a Reply, or what goes into one."""


def chat(text: Any = "yes", finish: Any = "stop", **message: Any) -> Body:
    """As OpenAI's own server."""
    said = {"role": "assistant", "content": text, **message}
    choice = {"index": 0, "finish_reason": finish, "logprobs": None, "message": said}
    return {"id": "c", "object": "chat.completion", "created": 0, "choices": [choice]}


def completion(text: Any = "yes", finish: Any = "stop", **choice: Any) -> Body:
    """As vLLM's and SGLang's; `choice` has what is asked for beside."""
    made = {"index": 0, "finish_reason": finish, "logprobs": None, "text": text, **choice}
    return {"id": "c", "object": "text_completion", "created": 0, "choices": [made]}


def sampled(body: Body, text: str, ids: list[int], **choice: Any) -> Body:
    """With token ids and log-probabilities."""
    scores = {"tokens": ["?"] * len(ids), "token_logprobs": [LOGPROB] * len(ids)}
    told = {"logprobs": scores, "token_ids": ids, "prompt_token_ids": body["prompt"]}
    return completion(text, **(told | choice))


class MockServer:
    """Answers by a function that may be put in its place while it serves."""

    def __init__(self, speak: Speak) -> None:
        self.speak = speak
        self.asked: list[tuple[str, Body]] = []
        self.keys: list[str | None] = []
        self.url = ""
        self._loop = asyncio.new_event_loop()
        self._up, self._down = Event(), asyncio.Event()
        self._thread = Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()
        assert self._up.wait(30)

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._down.set)
        self._thread.join(30)

    def _run(self) -> None:
        self._loop.run_until_complete(self._serve())
        self._loop.close()

    async def _serve(self) -> None:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._answer)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
        self._up.set()
        await self._down.wait()
        await runner.cleanup()

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        path = request.match_info["path"].removeprefix("v1/")
        self.asked.append((path, body))
        self.keys.append(request.headers.get("Authorization"))
        said = self.speak(path, body)
        reply = said if isinstance(said, Reply) else Reply(said)
        if reply.until is not None:
            await asyncio.get_running_loop().run_in_executor(None, reply.until.wait, 30)
        data = reply.said if isinstance(reply.said, bytes) else json.dumps(reply.said).encode()
        headers = {"Content-Type": "application/json"} | reply.headers
        if reply.keep is None:
            return web.Response(status=reply.status, body=data, headers=headers)
        response = web.StreamResponse(status=reply.status, headers=headers)
        response.content_length = len(data)
        await response.prepare(request)
        await response.write(data[: reply.keep])
        assert request.transport is not None
        request.transport.close()
        return response


@contextmanager
def serving(speak: Speak) -> Iterator[MockServer]:
    server = MockServer(speak)
    server.start()
    yield server
    server.stop()
