"""Dialects behind a transport of httpx: vendors' clients ask, a function replies, no socket."""

from collections.abc import Callable, Sequence
from typing import Any

import anthropic
import httpx
import httpx2
import openai

from rollcall.inference.dialects.dialect import Declined, ParsedRequest
from rollcall.inference.dialects.routes import ROUTES, HttpAnswer, answer, dialect_of, error_answer
from rollcall.schemas.agent_requests import AgentRequest, Choice, ErrorReply, ModelReply, Reply
from rollcall.schemas.messages import Message

ID = "5f" * 16
REPLY_MS = 1_700_000_000_123
Replies = Callable[[AgentRequest], Reply | Declined]


def reply_to(request: AgentRequest, *choices: Choice, prompt_tokens: int = 7) -> ModelReply:
    return ModelReply(request.d, choices, ID, REPLY_MS, prompt_tokens)


def says(*choices: Choice) -> Replies:
    return lambda request: reply_to(request, *choices)


def fails(status: int, code: str, error: str) -> Replies:
    return lambda request: ErrorReply(request.d, status, code, error)


class DialectServer:
    """Remembers what was asked; answers as `replies` says."""

    def __init__(self, replies: Replies, policies: Sequence[str] = ("policy",)) -> None:
        self.replies = replies
        self.policies = policies
        self.requests: list[ParsedRequest] = []
        self.calls = 0
        self.earlier: dict[str, tuple[Message, ...]] = {}

    @property
    def request(self) -> AgentRequest:
        return self.requests[-1].request

    def openai(self, **options: Any) -> openai.OpenAI:
        client = httpx.Client(transport=httpx.MockTransport(self._handle))
        options = {"max_retries": 0, "http_client": client} | options
        return openai.OpenAI(api_key="key", base_url="http://gateway/v1", **options)

    def anthropic(self, **options: Any) -> anthropic.Anthropic:
        client = httpx2.Client(transport=httpx2.MockTransport(self._handle2))
        options = {"max_retries": 0, "http_client": client} | options
        return anthropic.Anthropic(api_key="key", base_url="http://gateway", **options)

    def _handle(self, request: httpx.Request) -> httpx.Response:
        found = self.answer(request.url.path, request.content)
        return httpx.Response(found.status, headers=found.headers, content=found.body)

    def _handle2(self, request: httpx2.Request) -> httpx2.Response:
        found = self.answer(request.url.path, request.content)
        return httpx2.Response(found.status, headers=found.headers, content=found.body)

    def answer(self, path: str, body: bytes) -> HttpAnswer:
        self.calls += 1
        dialect = dialect_of(path)
        try:
            if path not in ROUTES:
                msg = f"nothing answers {path}"
                raise Declined(404, "not_found", msg)
            read = dialect.read(body, self.policies, self.earlier)
            self.requests.append(read)
            reply = self.replies(read.request)
            if isinstance(reply, Declined):
                raise reply
        except Declined as declined:
            return error_answer(dialect, declined)
        if isinstance(reply, ModelReply):
            self.earlier |= dialect.kept(read, reply)
        return answer(dialect, read, reply)
