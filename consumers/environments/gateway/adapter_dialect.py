"""Requests of our adapters besides model calls: a step of the task's environment, or the result.

`POST /v1/step` takes `{"action": text}`, `POST /v1/finish` `{"result": text}`; both are answered
with the observation. Errors have OpenAI's form.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import orjson

from rollcall.inference.dialects.chat_completions import CHAT
from rollcall.inference.dialects.dialect import Conversations, Dialect, ParsedRequest
from rollcall.inference.dialects.read_body import BODY_CONFIG, read_body
from rollcall.schemas.agent_requests import AgentRequest, ModelReply, StepReply

ReadBody = Callable[[bytes, Sequence[str], Conversations], ParsedRequest]

OBSERVED = ("text", "reward", "terminated", "truncated", "info")


@dataclass(frozen=True, slots=True)
class _StepBody:
    __pydantic_config__ = BODY_CONFIG

    action: str


@dataclass(frozen=True, slots=True)
class _FinishBody:
    __pydantic_config__ = BODY_CONFIG

    result: str


def _read_step(body: bytes, _: Sequence[str], __: Conversations) -> ParsedRequest:
    return ParsedRequest(AgentRequest("step", text=read_body(body, _StepBody).action))


def _read_finish(body: bytes, _: Sequence[str], __: Conversations) -> ParsedRequest:
    return ParsedRequest(AgentRequest("finish", text=read_body(body, _FinishBody).result))


def observation_body(reply: StepReply) -> bytes:
    """Return the observation as JSON; its `info` is a JSON text, passed on as it is."""
    return orjson.dumps({name: getattr(reply, name) for name in OBSERVED})


def _no_model(parsed: ParsedRequest, reply: ModelReply) -> bytes:
    msg = f"the reply to {parsed.request.kind} request {reply.d} must not be a ModelReply"
    raise TypeError(msg)


def _dialect(kind: Literal["step", "finish"], read: ReadBody) -> Dialect:
    return Dialect(
        kind,
        read=read,
        body=_no_model,
        events=_no_model,
        error=CHAT.error,
        error_event=CHAT.error_event,
    )


ADAPTER_ROUTES = {
    "/v1/step": _dialect("step", _read_step),
    "/v1/finish": _dialect("finish", _read_finish),
}
