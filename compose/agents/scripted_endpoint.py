"""An endpoint that answers as it was told, to see what an agent asks; no model, no log.

It takes what the gateway takes, as far as an agent's first turns go, and notes down every request.
"""

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

KEY = "scripted"


@dataclass(frozen=True, slots=True)
class ScriptedAnswer:
    """What the policy says when it is asked: text, or a call of one tool."""

    text: str = ""
    tool: str = ""
    arguments: str = "{}"


@dataclass(slots=True)
class ScriptedEndpoint:
    """Answers model calls from a list, its last one for ever, and steps with a word each."""

    task: Mapping[str, Any]
    answers: Sequence[ScriptedAnswer]
    step_text: str = "done"
    url: str = ""
    """The base that an agent is given; clients append /v1 as their vendors want."""
    seen: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    """The path of each request below /v1, and its body."""
    finished: str | None = None
    """What the agent handed in as its result."""

    @asynccontextmanager
    async def serving(self) -> AsyncIterator["ScriptedEndpoint"]:
        """Listen on a free port of the loopback."""
        application = web.Application(client_max_size=32 * 1024 * 1024)
        application.router.add_route("*", f"/r/{KEY}/v1/{{path:.+}}", self._handle)
        runner = web.AppRunner(application, access_log=None)
        await runner.setup()
        try:
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            host, port = runner.addresses[0][:2]
            self.url = f"http://{host}:{port}/r/{KEY}"
            yield self
        finally:
            await runner.cleanup()

    def calls(self) -> list[tuple[str, dict[str, Any]]]:
        """The requests that asked the model."""
        return [(path, body) for path, body in self.seen if path in _ANSWERED]

    async def _handle(self, request: web.Request) -> web.Response:
        path = request.match_info["path"]
        body = await request.json() if request.can_read_body else {}
        if request.headers.get("Authorization") != f"Bearer {KEY}":
            return web.json_response({"error": {"message": "wrong key"}}, status=401)
        self.seen.append((path, body))
        if path in _ANSWERED:
            number = len(self.calls()) - 1
            answer = self.answers[min(number, len(self.answers) - 1)]
            return _ANSWERED[path](answer, body, number)
        match path:
            case "task":
                return web.json_response(dict(self.task))
            case "step":
                seen = {"text": self.step_text, "reward": 0.0, "info": {}}
                return web.json_response({**seen, "terminated": False, "truncated": False})
            case "finish":
                self.finished = body.get("result", "")
                return web.json_response({})
        return web.json_response({"error": {"message": f"no route {path}"}}, status=404)


def _chat(answer: ScriptedAnswer, body: Mapping[str, Any], number: int) -> web.Response:
    message: dict[str, Any] = {"role": "assistant", "content": answer.text or None}
    if answer.tool:
        function = {"name": answer.tool, "arguments": answer.arguments}
        message["tool_calls"] = [{"id": f"call_{number}", "type": "function", "function": function}]
    head = {"id": f"chat_{number}", "created": 0, "model": body.get("model")}
    reason = "tool_calls" if answer.tool else "stop"
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    if not body.get("stream"):
        choice = {"index": 0, "finish_reason": reason, "logprobs": None, "message": message}
        whole = {**head, "object": "chat.completion", "choices": [choice], "usage": usage}
        return web.json_response(whole)
    for index, call in enumerate(message.get("tool_calls", ())):
        call["index"] = index
    pieces: list[dict[str, Any]] = [
        {"choices": [{"index": 0, "delta": message, "finish_reason": None}]},
        {"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]},
        {"choices": [], "usage": usage},
    ]
    chunks = [{**head, "object": "chat.completion.chunk", **piece} for piece in pieces]
    lines = [f"data: {json.dumps(chunk)}\n\n" for chunk in chunks] + ["data: [DONE]\n\n"]
    return web.Response(text="".join(lines), content_type="text/event-stream")


def _responses(answer: ScriptedAnswer, body: Mapping[str, Any], number: int) -> web.Response:
    item: dict[str, Any] = {"id": f"item_{number}", "status": "completed"}
    if answer.tool:
        call = {"call_id": f"call_{number}", "name": answer.tool, "arguments": answer.arguments}
        item |= {"type": "function_call", **call}
    else:
        text = {"type": "output_text", "text": answer.text, "annotations": []}
        item |= {"type": "message", "role": "assistant", "content": [text]}
    usage = {
        "input_tokens": 1,
        "output_tokens": 1,
        "total_tokens": 2,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens_details": {"reasoning_tokens": 0},
    }
    whole = {
        "id": f"response_{number}",
        "object": "response",
        "created_at": 0,
        "status": "completed",
        "model": body.get("model"),
        "output": [item],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": usage,
    }
    return web.json_response(whole)


_ANSWERED = {"chat/completions": _chat, "responses": _responses}
