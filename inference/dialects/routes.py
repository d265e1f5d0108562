"""Routes: the dialect of each path, and replies rendered as HTTP answers."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import orjson

from rollcall.inference.dialects.anthropic_messages import COUNT_TOKENS, MESSAGES
from rollcall.inference.dialects.chat_completions import CHAT
from rollcall.inference.dialects.dialect import Declined, Dialect, ParsedRequest, TooLong
from rollcall.inference.dialects.responses import RESPONSES
from rollcall.schemas.agent_requests import ErrorReply, ModelReply, Reply
from rollcall.schemas.errors import FailureCode

JSON = "application/json"
EVENTS = "text/event-stream"

TOO_LONG = frozenset({FailureCode.TOO_LONG, "context_length_exceeded"})
LENGTHS = re.compile(r"length is (\d+) tokens.* resulted in (\d+) tokens")
"""The pattern of an engine's error for a call that is too long."""

ROUTES: Mapping[str, Dialect] = {
    "/v1/chat/completions": CHAT,
    "/v1/responses": RESPONSES,
    "/v1/messages": MESSAGES,
    "/v1/messages/count_tokens": COUNT_TOKENS,
}
"""Dialects by path, as clients append it to their base URL; all take POST."""


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """A complete HTTP answer."""

    status: int
    headers: Mapping[str, str]
    """The headers, including `Content-Type`."""
    body: bytes


def dialect_of(path: str) -> Dialect:
    """Return the dialect of a path; for an unknown path, the one in which its error is written."""
    return ROUTES.get(path) or (MESSAGES if path.startswith("/v1/messages") else CHAT)


def answer(dialect: Dialect, parsed: ParsedRequest, reply: Reply) -> HttpAnswer:
    """Render the reply to a request as JSON or as a complete stream."""
    if isinstance(reply, ErrorReply):
        return error_answer(dialect, declined_by(reply))
    if parsed.stream:
        return HttpAnswer(200, {"Content-Type": EVENTS}, rest_of_stream(dialect, parsed, reply))
    model_reply = _model_reply(reply)
    return HttpAnswer(200, {"Content-Type": JSON}, dialect.body(parsed, model_reply))


def error_answer(dialect: Dialect, declined: Declined) -> HttpAnswer:
    """Render a refusal as status, headers and body in the vendor's form."""
    return HttpAnswer(
        declined.status, {"Content-Type": JSON, **declined.headers}, dialect.error(declined)
    )


def rest_of_stream(dialect: Dialect, parsed: ParsedRequest, reply: Reply) -> bytes:
    """Return all events of a stream that has sent only its headers and `dialect.waiting`."""
    if isinstance(reply, ErrorReply):
        return dialect.error_event(declined_by(reply))
    return dialect.events(parsed, _model_reply(reply))


def declined_by(reply: ErrorReply) -> Declined:
    """Return the refusal for a recorded error; a 429 may be retried, a 5xx is final."""
    retry_after_s = 1 if reply.status == 429 else None
    lengths = LENGTHS.search(reply.error) if reply.code in TOO_LONG else None
    if lengths:
        return TooLong(int(lengths[2]), int(lengths[1]))
    return Declined(reply.status, reply.code, reply.error, retry_after_s=retry_after_s)


def models_body(policies: Sequence[str]) -> bytes:
    """Return the body of `GET /v1/models`."""
    data = [
        {"id": policy, "object": "model", "created": 0, "owned_by": "rollcall"}
        for policy in policies
    ]
    return orjson.dumps({"object": "list", "data": data})


def _model_reply(reply: Reply) -> ModelReply:
    if not isinstance(reply, ModelReply):
        found = type(reply).__name__
        msg = f"the reply to model request {reply.d} must be a ModelReply, found {found}"
        raise TypeError(msg)
    return reply
