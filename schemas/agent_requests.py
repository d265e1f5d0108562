"""The requests of an agent's process over HTTP and their replies, shared by two consumer groups.

A request is part of an observation, a reply is part of an action. Both are neutral: they have no
vendor's names and one canonical form of messages (`Message` with parts joined, null = "", tool
calls as in `rollcall.schemas.tool_calls`), so that messages that an agent sends back equal those of
the journal.

A request is named by `d`, a digest of all fields that decide its reply. It is serialised as its
difference to an earlier request (`like`, `same`, `new`), so that the bytes of a conversation grow
with its messages, not with their square. A reader never computes the name again: journals stay
readable if a later release computes names differently.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache
from hashlib import blake2b
from operator import is_
from typing import Annotated, Any, Literal, TypeVar, cast

import orjson
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from rollcall.schemas.errors import WireError
from rollcall.schemas.messages import Message
from rollcall.schemas.untrusted_text import clean_text, describe_value

Kind = Literal["model", "step", "finish"]
Count = Annotated[int, Field(ge=0, le=2**31 - 1)]
Digest = Annotated[str, Field(pattern="^[0-9a-f]{32}$")]
T = TypeVar("T")
AnyRequest = TypeVar("AnyRequest", "AgentRequest", "RequestFingerprint")

STRICT = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)
DIGEST_BYTES = 16
FUNCTION = "function:"
"""Before the name of the one function that must be called, in `tool_choice`."""
STARVED = "out_of_memory"
"""The key in the info of an agent's end: its task's box had no memory left."""


@dataclass(frozen=True, slots=True)
class AgentRequest:
    """One request of an agent's process.

    A `model` request has `messages`; `text` is the action of a `step`, or the result of a `finish`.
    """

    kind: Kind
    messages: tuple[Message, ...] = ()
    text: str = ""
    policy: str = ""
    """The policy of the rollout that is to answer."""
    tools: str = ""
    """JSON `[{"type": "function", "function": {"name", "description", "parameters"}}]`, compact."""
    tool_choice: str = "auto"
    """auto, none, required, or FUNCTION and a name."""
    stop: tuple[str, ...] = ()
    max_tokens: Count | None = None
    """None: as many as the rollout's sampling allows. 0: only count the tokens of the messages."""
    n: Annotated[int, Field(ge=1, le=2**31 - 1)] = 1
    logprobs: bool = False
    token_ids: bool = False
    temperature: float | None = None
    """The value that the agent sent; sampling follows the rollout's request. Like the two below it
    is no part of the name."""
    top_p: float | None = None
    seed: int | None = None
    d: str = ""
    """The name: 32 hexadecimal digits, computed if it is not given."""
    fingerprint: "RequestFingerprint | None" = field(default=None, compare=False, repr=False)
    """The digests of the whole request; set if its first messages are left out."""

    def __post_init__(self) -> None:
        if not self.d:
            object.__setattr__(self, "d", _name_of(self))

    @property
    def count(self) -> int:
        """The number of messages."""
        return len(self.messages)

    def sharing(self, known: Sequence["AgentRequest"]) -> "AgentRequest":
        """Return an equal request that reuses equal objects of the closest known one.

        A client sends the whole conversation with every request; without sharing, each would hold
        a copy of it.
        """
        like, same = _closest(self, known, _shared_messages)
        if like is None:
            return self
        tools = like.tools if like.tools == self.tools else self.tools
        if tools is self.tools and all(map(is_, self.messages[:same], like.messages)):
            return self
        return replace(self, messages=(*like.messages[:same], *self.messages[same:]), tools=tools)

    def shortened(self, fingerprint: "RequestFingerprint", same: int) -> "AgentRequest":
        """Return a copy without the first `same` messages, which an earlier request has."""
        left = self.messages[same - self.left_out :]
        return replace(self, messages=left, fingerprint=fingerprint)

    def without_texts(self) -> "AgentRequest":
        """Return a copy without the texts, enough to answer it."""
        return replace(self, messages=(), text="", tools="")

    @property
    def left_out(self) -> int:
        """The number of first messages that are left out."""
        return self.fingerprint.count - len(self.messages) if self.fingerprint else 0

    def value(self, like: "RequestFingerprint | None" = None, same: int = 0) -> dict[str, Any]:
        """Return JSON values, as a difference to `like`, whose first `same` messages it shares.

        At most these messages may be left out of it.
        """
        value: dict[str, Any] = {"d": self.d, "kind": self.kind}
        if like is not None:
            value |= {"like": like.d, "same": same}
        if new := self.messages[same - self.left_out :]:
            value["new"] = [_sparse(message) for message in new]
        if like is not None and _digest(self.tools) == like.tools:
            value["tools"] = None
        return _sparse(self, "kind", "messages", "d", "fingerprint") | value


@dataclass(slots=True)
class RequestFingerprint:
    """Digests of a request's messages, enough to send later requests as a difference to it.

    An agent sends its whole conversation with every request; the sender need not hold the texts.
    """

    d: str
    tools: bytes
    messages: memoryview
    """The digests of the messages, DIGEST_BYTES each."""

    @classmethod
    def of(cls, request: "AgentRequest | RequestFingerprint") -> "RequestFingerprint":
        if isinstance(request, RequestFingerprint):
            return request
        if request.fingerprint is not None:
            return request.fingerprint
        messages = b"".join(_digest(_message_values(message)) for message in request.messages)
        return cls(request.d, _digest(request.tools), memoryview(messages))

    @property
    def count(self) -> int:
        """The number of messages of the request."""
        return len(self.messages) // DIGEST_BYTES

    def share(self, other: "RequestFingerprint") -> None:
        """Share memory with another fingerprint if that one begins with all messages of this."""
        same = other.messages[: len(self.messages)]
        if same == self.messages:
            self.messages = same

    def shared_messages(self, other: "RequestFingerprint") -> int:
        """Return the length of their common prefix."""
        some, others = self.messages, other.messages
        size = min(len(some), len(others))
        if some[:size] == others[:size]:
            return size // DIGEST_BYTES
        places = (slice(at, at + DIGEST_BYTES) for at in range(0, size, DIGEST_BYTES))
        return next(number for number, at in enumerate(places) if some[at] != others[at])

    def closest(
        self, known: Sequence["RequestFingerprint"]
    ) -> "tuple[RequestFingerprint | None, int]":
        """Return the fingerprint with the longest common prefix, and the prefix's length."""
        return _closest(self, known, RequestFingerprint.shared_messages)


@dataclass(frozen=True, slots=True)
class RequestDifference:
    """A serialised request: the part beyond the first `same` messages of the request `like`."""

    __pydantic_config__ = STRICT

    d: Digest
    kind: Kind
    like: Digest | Literal[""] = ""
    same: Count = 0
    new: tuple[Message, ...] = ()
    text: str = ""
    policy: str = ""
    tools: str | None = ""
    """None: those of the request `like`."""
    tool_choice: str = "auto"
    stop: tuple[str, ...] = ()
    max_tokens: Count | None = None
    n: Annotated[int, Field(ge=1, le=2**31 - 1)] = 1
    logprobs: bool = False
    token_ids: bool = False
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None

    def rebuild(self, known: Mapping[str, AgentRequest]) -> AgentRequest:
        """Rebuild the request. Raises WireError if `like` is unknown or does not fit."""
        like = known.get(self.like)
        if self.like and like is None:
            msg = f"request {self.d} is a difference to request {self.like}, which is not known"
            raise WireError(msg)
        before = like.messages if like else ()
        if self.same > len(before) or (self.tools is None and like is None):
            msg = (
                f"request {self.d} takes {self.same} messages and its tools from request "
                f"{self.like!r}, which has {len(before)} messages"
            )
            raise WireError(msg)
        tools = like.tools if like and self.tools is None else self.tools or ""
        return AgentRequest(
            kind=self.kind,
            messages=(*before[: self.same], *self.new),
            text=self.text,
            policy=self.policy,
            tools=tools,
            tool_choice=self.tool_choice,
            stop=self.stop,
            max_tokens=self.max_tokens,
            n=self.n,
            logprobs=self.logprobs,
            token_ids=self.token_ids,
            temperature=self.temperature,
            top_p=self.top_p,
            seed=self.seed,
            d=self.d,
        )


@dataclass(frozen=True, slots=True)
class Choice:
    """One of the `n` continuations of a model request."""

    text: str
    finish: str = "stop"
    """The engine's finish reason: `stop`, `length`."""
    tool_calls: str = ""
    """`rollcall.schemas.tool_calls`."""
    sampled_tokens: Count = 0
    token_ids: tuple[int, ...] | None = None
    """The sampled token ids, if the request wants them or the log-probabilities."""
    logprobs: tuple[float, ...] | None = None
    """The log-probability of each sampled token (natural), if the request wants them."""
    stopped_by: str = ""
    """The stop string that ended it; empty if none did."""


@dataclass(frozen=True, slots=True)
class ModelReply:
    """The answer of the policy to a model request."""

    __pydantic_config__ = STRICT

    d: Digest
    choices: tuple[Choice, ...]
    id: str = ""
    """The id of the (first) command that was answered, in hexadecimal."""
    at_ms: int = 0
    """The time of the journal's entry, so that a repeated reply has the same bytes."""
    prompt_tokens: Count = 0
    prompt_token_ids: tuple[int, ...] | None = None

    @property
    def sampled_tokens(self) -> int:
        return sum(choice.sampled_tokens for choice in self.choices)


@dataclass(frozen=True, slots=True)
class StepReply:
    """The observation for a step request, or the acknowledgement of a finish request."""

    __pydantic_config__ = STRICT

    d: Digest
    text: str
    reward: float = 0.0
    terminated: bool = False
    truncated: bool = False
    info: str = ""


@dataclass(frozen=True, slots=True)
class ErrorReply:
    """The failure of a request, as an HTTP status and a code."""

    __pydantic_config__ = STRICT

    d: Digest
    status: Annotated[int, Field(ge=400, le=599)]
    code: str
    """The code: `context_length_exceeded`, `not_found`, or a CallFailed's."""
    error: str
    """The message, for people and for clients that read it."""


Reply = ModelReply | StepReply | ErrorReply


@dataclass(frozen=True, slots=True)
class AgentAction:
    """The message of a program to an agent's process: ready replies and open requests."""

    replies: tuple[Reply, ...]
    open: tuple[str, ...] = ()
    """Names of the received requests without a reply; a name once for each occurrence."""

    def text(self) -> str:
        """Serialise it as the action of an environment step."""
        replies = [_reply_value(reply) for reply in self.replies]
        return orjson.dumps({"replies": replies, "open": self.open}).decode()

    @classmethod
    def of(cls, text: str) -> "AgentAction":
        """Read an action. Raises WireError for any other text."""
        read = _read(_ActionValue, text, "an agent's action")
        return cls(read.replies, read.open)


@dataclass(frozen=True, slots=True)
class _ActionValue:
    __pydantic_config__ = STRICT

    replies: tuple[Annotated[Reply, Field(union_mode="left_to_right")], ...]
    open: tuple[Digest, ...] = ()


@dataclass(frozen=True, slots=True)
class _RequestsValue:
    __pydantic_config__ = STRICT

    asks: tuple[RequestDifference, ...]
    """The requests, under the name that they have in journals."""


def requests_text(
    requests: Iterable[AgentRequest], known: Iterable[AgentRequest | RequestFingerprint]
) -> str:
    """Serialise requests as an observation, each as a difference to an earlier one."""
    return differences_text(choose_bases(requests, known))


@dataclass(frozen=True, slots=True)
class RequestWithBase:
    """A request, and the earlier one with which it has the first `same` messages in common."""

    request: AgentRequest
    fingerprint: RequestFingerprint
    like: RequestFingerprint | None
    same: int


def choose_bases(
    requests: Iterable[AgentRequest],
    known: Iterable[AgentRequest | RequestFingerprint],
    seen: Mapping[str, RequestFingerprint] | None = None,
) -> list[RequestWithBase]:
    """Choose for each request the earlier one to which it is sent as a difference.

    `seen` are fingerprints that the caller has already, by name.
    """
    earlier, chosen = [RequestFingerprint.of(each) for each in known], []
    fingerprints = {**(seen or {}), **{each.d: each for each in earlier}}
    for request in requests:
        fingerprint = fingerprints.get(request.d) or RequestFingerprint.of(request)
        chosen.append(RequestWithBase(request, fingerprint, *fingerprint.closest(earlier)))
        earlier.append(fingerprint)
    return chosen


def differences_text(requests: Iterable[RequestWithBase]) -> str:
    """Serialise requests, whose bases are chosen, as an observation."""
    values = [each.request.value(each.like, each.same) for each in requests]
    return orjson.dumps({"asks": values}).decode()


def requests_of(text: str, known: Mapping[str, AgentRequest]) -> tuple[AgentRequest, ...]:
    """Rebuild the requests of an observation. Raises WireError if one does not fit."""
    earlier, requests = dict(known), []
    for difference in differences_of(text):
        request = difference.rebuild(earlier)
        earlier[request.d] = request
        requests.append(request)
    return tuple(requests)


def differences_of(text: str) -> tuple[RequestDifference, ...]:
    """Parse the requests of an observation. Raises WireError if it holds none."""
    return _read(_RequestsValue, text, "an observation of requests").asks


def _read(of: type[T], text: str, name: str) -> T:
    try:
        read: T = _adapter_of(cast(Any, of)).validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"])) or "the whole"
        found = clean_text(describe_value(first["input"]))
        msg = f"{name} does not fit at {place}: {first['msg']}, found {found}"
        raise WireError(msg) from error
    return read


@cache
def _adapter_of(read: Any) -> TypeAdapter[Any]:
    """Make the adapter on first use, since it costs some milliseconds."""
    return TypeAdapter(read)


def _name_of(request: AgentRequest) -> str:
    named = [
        request.kind,
        request.policy,
        [_message_values(message) for message in request.messages],
        request.text,
        request.tools,
        request.tool_choice,
        request.stop,
        request.max_tokens,
        request.n,
        request.logprobs,
        request.token_ids,
    ]
    return _digest(named).hex()


def _message_values(message: Message) -> tuple[str, ...]:
    return message.role, message.content, message.tool_calls, message.tool_call_id, message.name


def _digest(value: object) -> bytes:
    return blake2b(orjson.dumps(value), digest_size=DIGEST_BYTES).digest()


def _shared_messages(request: AgentRequest, other: AgentRequest) -> int:
    return shared_length(request.messages, other.messages)


def _closest(
    request: AnyRequest,
    known: Sequence[AnyRequest],
    shared: Callable[[AnyRequest, AnyRequest], int],
) -> tuple[AnyRequest | None, int]:
    """Return the known request with the longest common prefix, and the prefix's length.

    Of equally close ones this is the latest: an agent usually continues from it, so the search
    begins there.
    """
    best, most = None, 0
    for other in reversed(known):
        same = shared(request, other)
        if same > most:
            best, most = other, same
        if most == request.count or same == other.count > 0:
            break
    return best, most


def shared_length(some: Sequence[Message], others: Sequence[Message]) -> int:
    """Return the length of their common prefix."""
    both = min(len(some), len(others))
    if some[:both] == others[:both]:  # the usual case, and fast: mostly they are the same objects
        return both
    pairs = zip(some, others, strict=False)
    return next((at for at, (one, other) in enumerate(pairs) if one != other), both)


def _sparse(record: Any, *without: str) -> dict[str, Any]:
    """Return the fields that differ from their defaults, by name."""
    return {
        name: value
        for name, default in _defaults(cast(Any, type(record)))
        if name not in without and (value := getattr(record, name)) != default
    }


@cache
def _defaults(of: Any) -> tuple[tuple[str, object], ...]:
    return tuple((one.name, one.default) for one in fields(of))


def _reply_value(reply: Reply) -> dict[str, Any]:
    value = _sparse(reply)
    if isinstance(reply, ModelReply):
        value["choices"] = [_sparse(choice) for choice in reply.choices]
    return value
