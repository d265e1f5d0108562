"""An endpoint with scripted answers, to observe an agent's requests; no model, no log.

Bodies are read and written by the gateway's own dialects; every request is recorded.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from rollcall.consumers.environments.adapter_dialect import ADAPTER_ROUTES, shown_body
from rollcall.inference.dialects.dialect import Declined, ParsedRequest
from rollcall.inference.dialects.routes import ROUTES, answer, dialect_of, error_answer
from rollcall.schemas.asks import Ask, Choice, ModelReply, StepReply
from rollcall.schemas.tool_calls import ToolCall, tool_calls_text

KEY = "scripted"
POLICY = "policy"


@dataclass(frozen=True, slots=True)
class ScriptedAnswer:
    """The policy's answer to a call: text, or a call of one tool."""

    text: str = ""
    tool: str = ""
    arguments: str = "{}"


@dataclass(slots=True)
class ScriptedEndpoint:
    """An endpoint that answers model calls and steps from lists; the last entry repeats."""

    task: Mapping[str, Any]
    answers: Sequence[ScriptedAnswer]
    steps: Sequence[Mapping[str, Any]] = ({"text": "done"},)
    """The environment's answers, by the fields of a step's answer that are not the default."""
    url: str = ""
    """The base URL for the agent; clients append their vendor's path."""
    calls: list[tuple[str, ParsedRequest]] = field(default_factory=list)
    """The requests to the model, each with its path."""
    actions: list[str] = field(default_factory=list)
    """The actions for the environment."""
    result: str | None = None
    """The result that the agent returned."""

    @asynccontextmanager
    async def serving(self) -> AsyncIterator["ScriptedEndpoint"]:
        """Listen on a free port of the loopback."""
        application = web.Application(client_max_size=32 * 1024 * 1024)
        application.router.add_route("*", f"/r/{KEY}{{path:/.+}}", self._handle)
        runner = web.AppRunner(application, access_log=None)
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            host, port = runner.addresses[0][:2]
            self.url = f"http://{host}:{port}/r/{KEY}"
            yield self
        finally:
            await runner.cleanup()

    async def _handle(self, request: web.Request) -> web.Response:
        path, body = request.match_info["path"], await request.read()
        try:
            return self._answer(path, body, request.headers.get("Authorization", ""))
        except Declined as declined:
            refusal = error_answer(dialect_of(path), declined)
            return web.Response(status=refusal.status, headers=refusal.headers, body=refusal.body)

    def _answer(self, path: str, body: bytes, credential: str) -> web.Response:
        if credential != f"Bearer {KEY}":
            raise Declined(401, "invalid_api_key", "the key is not that of the URL")
        if path in ROUTES:
            return self._asked(path, body)
        if path in ADAPTER_ROUTES:
            return self._acted(ADAPTER_ROUTES[path].read(body, [POLICY], {}).ask)
        if path == "/v1/task":
            return web.json_response(dict(self.task))
        raise Declined(404, "not_found", f"{path}: there is no such route")

    def _acted(self, ask: Ask) -> web.Response:
        shown: Mapping[str, Any] = {"text": ""}
        if ask.kind == "step":
            self.actions.append(ask.text)
            shown = _of(self.steps, len(self.actions))
        else:
            self.result = ask.text
        reply = StepReply(ask.d, **{"info": "{}", **shown})
        return web.Response(body=shown_body(reply), content_type="application/json")

    def _asked(self, path: str, body: bytes) -> web.Response:
        request = ROUTES[path].read(body, [POLICY], {})
        self.calls.append((path, request))
        number = len(self.calls)
        said = _of(self.answers, number)
        calls = [ToolCall(f"call_{number}", said.tool, said.arguments)] if said.tool else []
        choice = Choice(said.text, tool_calls=tool_calls_text(calls), sampled_tokens=1)
        reply = ModelReply(request.ask.d, (choice,), id=f"{number:032x}", prompt_tokens=1)
        told = answer(ROUTES[path], request, reply)
        return web.Response(status=told.status, headers=told.headers, body=told.body)


def _of(script: Sequence[Any], number: int) -> Any:
    """Return a script's entry for the request of a number, from 1."""
    return script[min(number, len(script)) - 1]
