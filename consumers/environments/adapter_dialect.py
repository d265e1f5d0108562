"""What our adapters ask beside the model: a step of their task's environment, or their end.

`POST /v1/step` takes `{"action": text}`, `POST /v1/finish` `{"result": text}`; both are answered
with what the environment showed. Errors are OpenAI's.
"""

from collections.abc import Sequence
from functools import partial
from typing import Literal

import orjson

from inference.dialects.chat_completions import CHAT
from inference.dialects.dialect import AgentRequest, Conversations, Declined, Dialect
from schemas.asks import Ask, ModelReply, StepReply
from schemas.foreign_text import plain, shown

SHOWN = ("text", "reward", "terminated", "truncated", "info")


def _read(
    kind: Literal["step", "finish"],
    field: str,
    body: bytes,
    policies: Sequence[str],
    conversations: Conversations,
) -> AgentRequest:
    del policies, conversations
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        msg = f"the body is no JSON: {error}"
        raise Declined(400, "invalid_request_error", msg) from error
    text = value.get(field) if isinstance(value, dict) else None
    if not isinstance(text, str):
        msg = f'the body must be {{"{field}": text}}, found {plain(shown(value))}'
        raise Declined(400, "invalid_request_error", msg, param=field)
    return AgentRequest(Ask(kind, text=text))


def shown_body(reply: StepReply) -> bytes:
    """What the environment showed, as JSON; its `info` is a JSON text as it came."""
    return orjson.dumps({name: getattr(reply, name) for name in SHOWN})


def _no_model(request: AgentRequest, reply: ModelReply) -> bytes:
    msg = f"a {request.ask.kind} ask is told what a model said"
    raise TypeError(msg)


def _dialect(kind: Literal["step", "finish"], field: str) -> Dialect:
    return Dialect(
        kind,
        read=partial(_read, kind, field),
        body=_no_model,
        events=_no_model,
        error=CHAT.error,
        error_event=CHAT.error_event,
    )


ADAPTER_ROUTES = {
    "/v1/step": _dialect("step", "action"),
    "/v1/finish": _dialect("finish", "result"),
}
