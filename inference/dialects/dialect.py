"""The definition of a dialect, and the parts that all dialects share."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from rollcall.schemas.agent_requests import AgentRequest, Choice, ModelReply
from rollcall.schemas.errors import Refused
from rollcall.schemas.messages import Message
from rollcall.schemas.untrusted_text import clean_text

NAME_CHARS = 80
Conversations = Mapping[str, Sequence[Message]]
"""The messages of a session up to and including a response, by the response's id."""


class Declined(Refused):
    """The refusal of a request: an HTTP status, a code, a message, and the field concerned.

    A 5xx without `retry_after_s` is final: clients are told not to try again.
    """

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *,
        param: str | None = None,
        retry_after_s: int | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.param = param
        self.retry_after_s = retry_after_s

    @property
    def headers(self) -> dict[str, str]:
        """Return the headers by which vendors' clients decide on a retry."""
        if self.retry_after_s is not None:
            return {"Retry-After": str(self.retry_after_s)}
        return {"x-should-retry": "false"} if self.status >= 500 else {}


class TooLong(Declined):
    """The refusal of a prompt that is too long.

    Clients recognise it by the vendor's wording, and stop or shorten the prompt.
    """

    def __init__(self, tokens: int, most: int) -> None:
        msg = (
            f"This model's maximum context length is {most} tokens. However, your messages "
            f"resulted in {tokens} tokens."
        )
        super().__init__(400, "context_length_exceeded", msg, param="messages")
        self.tokens = tokens
        self.most = most


@dataclass(frozen=True, slots=True)
class ParsedRequest:
    """One parsed HTTP request of an agent: its content, and the form of the answer."""

    request: AgentRequest
    stream: bool = False
    include_usage: bool = False
    """True if a stream reports its usage, which is left out by default."""
    alternatives: bool = False
    """True if a log-probability lists the sampled token as its only known alternative."""
    echo: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the request that a response repeats."""
    turns: tuple[Message, ...] = ()
    """The messages before the reply, for a later request that continues from the response."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """One vendor's API. Its functions are pure; only `read` raises."""

    name: str
    read: Callable[[bytes, Sequence[str], Conversations], ParsedRequest]
    """Parse a body; given are the rollout's policies and earlier conversations. Raises Declined."""
    body: Callable[[ParsedRequest, ModelReply], bytes]
    """Return the answer as JSON."""
    events: Callable[[ParsedRequest, ModelReply], bytes]
    """Return the whole answer as server-sent events."""
    error: Callable[[Declined], bytes]
    """Return the JSON body of a refusal."""
    error_event: Callable[[Declined], bytes]
    """Return a refusal as the last event of a stream that has begun."""
    waiting: bytes = b": wait\n\n"
    """The keep-alive event of a stream that has begun and has no answer yet."""
    kept: Callable[[ParsedRequest, ModelReply], Conversations] = lambda parsed, reply: {}
    """Return the conversations to keep in the session, since later requests may continue them."""


def policy_of(model: str | None, policies: Sequence[str]) -> str:
    """Return the policy that a request's `model` names; with a single policy, any name means it.

    Raises Declined (404) for an unknown name where there are several.
    """
    if model is not None and model in policies:
        return model
    if len(policies) == 1:
        return policies[0]
    found = clean_text(repr(model), NAME_CHARS)
    msg = f"model {found} is no policy of this rollout; it has {', '.join(policies)}"
    raise Declined(404, "model_not_found", msg, param="model")


def finish_reason(choice: Choice, *, length: str, calls: str, stop: str) -> str:
    """Return a vendor's finish reason; an answer cut by its length has `length` even with calls."""
    if choice.finish == "length":
        return length
    return calls if choice.tool_calls else stop


def sent_event(value: object, name: str = "") -> bytes:
    """Return one server-sent event, whose JSON contains no line end."""
    data = orjson.dumps(value)
    for line_end, escaped in LINE_ENDS:
        data = data.replace(line_end, escaped)
    named = f"event: {name}\n".encode() if name else b""
    return named + b"data: " + data + b"\n\n"


LINE_ENDS = [(char.encode(), f"\\u{ord(char):04x}".encode()) for char in "\x85\u2028\u2029"]
"""Unicode line ends and their escapes; some clients split lines there too."""
