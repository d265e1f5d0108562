"""What a dialect is, and what all of them share: requests, answers, refusals."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from schemas.asks import Ask, Choice, ModelReply
from schemas.errors import Refused
from schemas.foreign_text import plain
from schemas.messages import Message

NAME_CHARS = 80
Conversations = Mapping[str, Sequence[Message]]
"""What was said in a session up to and with a response, by the response's id."""


class Declined(Refused):
    """A request that gets an HTTP error: its status, a code, the field that it is about.

    A 5xx without `retry_after_s` is final, and clients are told not to try again.
    """

    def __init__(
        self, status: int, code: str, message: str, *, param: str | None = None,
        retry_after_s: int | None = None,
    ) -> None:  # fmt: skip
        super().__init__(message)
        self.status = status
        self.code = code
        self.param = param
        self.retry_after_s = retry_after_s

    @property
    def headers(self) -> dict[str, str]:
        """What vendors' clients obey, beside the status."""
        if self.retry_after_s is not None:
            return {"Retry-After": str(self.retry_after_s)}
        return {"x-should-retry": "false"} if self.status >= 500 else {}


class TooLong(Declined):
    """Clients know it by each vendor's words: an agent stops at once, or shortens what it tells."""

    def __init__(self, tokens: int, most: int) -> None:
        msg = (
            f"This model's maximum context length is {most} tokens. However, your messages "
            f"resulted in {tokens} tokens."
        )
        super().__init__(400, "context_length_exceeded", msg, param="messages")
        self.tokens = tokens
        self.most = most


@dataclass(frozen=True, slots=True)
class AgentRequest:
    """One request of an agent, read: what it asks, and in what form it wants the reply."""

    ask: Ask
    stream: bool = False
    include_usage: bool = False
    """Whether a stream tells its usage although that is left out by default."""
    alternatives: bool = False
    """Whether a log-probability names the sampled token as the one alternative that is known."""
    echo: Mapping[str, Any] = field(default_factory=dict)
    """What a response repeats of its request."""
    turns: tuple[Message, ...] = ()
    """What a later request that goes on from the response is put before, without the reply."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """One vendor's API. All its functions are pure; only `read` refuses."""

    name: str
    read: Callable[[bytes, Sequence[str], Conversations], AgentRequest]
    """Read a body, with the policies of the rollout. Raises Declined."""
    body: Callable[[AgentRequest, ModelReply], bytes]
    """The answer as JSON."""
    events: Callable[[AgentRequest, ModelReply], bytes]
    """The answer as server-sent events, from the first to the last."""
    error: Callable[[Declined], bytes]
    """The JSON body that goes with the refusal's status."""
    error_event: Callable[[Declined], bytes]
    """The same in a stream that has begun, which it ends."""
    waiting: bytes = b": wait\n\n"
    """What keeps a stream awake that has begun and has no answer yet."""
    kept: Callable[[AgentRequest, ModelReply], Conversations] = lambda request, reply: {}
    """What the session must hold, so that later requests can go on from this answer."""


def policy_of(model: str | None, policies: Sequence[str]) -> str:
    """The policy that a request's `model` names; any name means the only one.

    Raises Declined (404) for an unknown name where there are several.
    """
    if model is not None and model in policies:
        return model
    if len(policies) == 1:
        return policies[0]
    found = plain(repr(model), NAME_CHARS)
    msg = f"model {found} is no policy of this rollout; it has {', '.join(policies)}"
    raise Declined(404, "model_not_found", msg, param="model")


def finish_word(choice: Choice, *, length: str, calls: str, stop: str) -> str:
    """A vendor's word for why an answer ended; one that was cut is cut, also within its calls."""
    if choice.finish == "length":
        return length
    return calls if choice.tool_calls else stop


def sent_event(value: object, name: str = "") -> bytes:
    """One server-sent event; its JSON holds no line end of its own, not even Unicode's."""
    data = orjson.dumps(value)
    for line_end, escaped in LINE_ENDS:
        data = data.replace(line_end, escaped)
    named = f"event: {name}\n".encode() if name else b""
    return named + b"data: " + data + b"\n\n"


LINE_ENDS = [(char.encode(), f"\\u{ord(char):04x}".encode()) for char in "\x85\u2028\u2029"]
"""Some clients split lines there too."""
