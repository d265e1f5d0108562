"""The requests of an agent's process over HTTP and their replies, shared by two consumer groups.

An ask is an observation, a reply is part of an action. Both are neutral: no vendor's names, one
canonical form of messages (`Message` with parts joined, null = "", tool calls as in
`rollcall.schemas.tool_calls`), so that what an agent sends back equals what the journal holds.

An ask is named by `d`, a digest of all that decides what is replied. It is told by its difference
to an ask that was heard before (`like`, `same`, `new`): the bytes of a conversation grow with its
messages, not with their square. A name is taken as it was told, never computed again, so that
journals stay readable when a later release names asks in another way.
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
AnyAsk = TypeVar("AnyAsk", "Ask", "RequestFingerprint")

STRICT = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)
PRINT_BYTES = 16
FUNCTION = "function:"
"""Before the name of the one function that must be called, in `tool_choice`."""
STARVED = "out_of_memory"
"""In what is told of an agent's end: its task's box had no memory left."""


@dataclass(frozen=True, slots=True)
class Ask:
    """One request of an agent's process, whole.

    `model` asks have `messages`; `text` is the action of a `step` ask, the result of a `finish`.
    """

    kind: Kind
    messages: tuple[Message, ...] = ()
    text: str = ""
    policy: str = ""
    """Which of the rollout's policies is asked."""
    tools: str = ""
    """JSON `[{"type": "function", "function": {"name", "description", "parameters"}}]`, compact."""
    tool_choice: str = "auto"
    """auto, none, required, or FUNCTION and a name."""
    stop: tuple[str, ...] = ()
    max_tokens: Count | None = None
    """None: as many as the request's sampling allows. 0: only count those of the messages."""
    n: Annotated[int, Field(ge=1, le=2**31 - 1)] = 1
    logprobs: bool = False
    token_ids: bool = False
    temperature: float | None = None
    """The value that the agent asked for; sampling follows the rollout's request. Like the two
    below it is no part of the name."""
    top_p: float | None = None
    seed: int | None = None
    d: str = ""
    """Its name: 32 hexadecimal digits; made when it is not given."""
    own: "RequestFingerprint | None" = field(default=None, compare=False, repr=False)
    """The digests of the whole ask, where its first messages are left out."""

    def __post_init__(self) -> None:
        if not self.d:
            object.__setattr__(self, "d", _name_of(self))

    @property
    def count(self) -> int:
        """The number of messages."""
        return len(self.messages)

    def sharing(self, known: Sequence["Ask"]) -> "Ask":
        """The same, which has in common with the closest known ask what is equal.

        A client sends all of a conversation with every ask: each would hold a copy of its own.
        """
        like, same = _closest(self, known, _shared_messages)
        if like is None:
            return self
        tools = like.tools if like.tools == self.tools else self.tools
        if tools is self.tools and all(map(is_, self.messages[:same], like.messages)):
            return self
        return replace(self, messages=(*like.messages[:same], *self.messages[same:]), tools=tools)

    def shortened(self, own: "RequestFingerprint", same: int) -> "Ask":
        """The same without its first messages, which it shared with the ask that it was told by."""
        return replace(self, messages=self.messages[same - self.left_out :], own=own)

    def without_words(self) -> "Ask":
        """Return a copy without the texts, enough to answer it."""
        return replace(self, messages=(), text="", tools="")

    @property
    def left_out(self) -> int:
        """The number of first messages that are left out."""
        return self.own.count - len(self.messages) if self.own else 0

    def value(self, like: "RequestFingerprint | None" = None, same: int = 0) -> dict[str, Any]:
        """Return JSON values, as a difference to an ask whose first `same` messages it shares.

        It must not be without more than that.
        """
        value: dict[str, Any] = {"d": self.d, "kind": self.kind}
        if like is not None:
            value |= {"like": like.d, "same": same}
        if new := self.messages[same - self.left_out :]:
            value["new"] = [_sparse(message) for message in new]
        if like is not None and _print_of(self.tools) == like.tools:
            value["tools"] = None
        return _sparse(self, "kind", "messages", "d", "own") | value


@dataclass(slots=True)
class RequestFingerprint:
    """The part of an ask that is kept so that later asks can be sent as a difference to it.

    A digest stands for each message. An agent sends all of its conversation with every ask: whoever
    tells asks need not hold it.
    """

    d: str
    tools: bytes
    messages: memoryview
    """PRINT_BYTES of each."""

    @classmethod
    def of(cls, ask: "Ask | RequestFingerprint") -> "RequestFingerprint":
        if isinstance(ask, RequestFingerprint):
            return ask
        if ask.own is not None:
            return ask.own
        prints = [_print_of([m.role, m.content, m.tool_calls, m.tool_call_id, m.name])
                  for m in ask.messages]  # fmt: skip
        return cls(ask.d, _print_of(ask.tools), memoryview(b"".join(prints)))

    @property
    def count(self) -> int:
        """The number of messages of the ask."""
        return len(self.messages) // PRINT_BYTES

    def share(self, other: "RequestFingerprint") -> None:
        """Hold the same bytes as another one that begins alike: as a rule one goes on from it."""
        same = other.messages[: len(self.messages)]
        if same == self.messages:
            self.messages = same

    def shared_messages(self, other: "RequestFingerprint") -> int:
        """Return the length of their common prefix."""
        some, others = self.messages, other.messages
        size = min(len(some), len(others))
        if some[:size] == others[:size]:
            return size // PRINT_BYTES
        places = (slice(at, at + PRINT_BYTES) for at in range(0, size, PRINT_BYTES))
        return next(number for number, at in enumerate(places) if some[at] != others[at])

    def closest(
        self, known: Sequence["RequestFingerprint"]
    ) -> "tuple[RequestFingerprint | None, int]":
        """The one with which it shares most of its first messages, and how many those are."""
        return _closest(self, known, RequestFingerprint.shared_messages)


@dataclass(frozen=True, slots=True)
class RequestDifference:
    """An ask as it is told: what it has beyond the first `same` messages of the ask `like`."""

    __pydantic_config__ = STRICT

    d: Digest
    kind: Kind
    like: Digest | Literal[""] = ""
    same: Count = 0
    new: tuple[Message, ...] = ()
    text: str = ""
    policy: str = ""
    tools: str | None = ""
    """None: those of the ask that it is like."""
    tool_choice: str = "auto"
    stop: tuple[str, ...] = ()
    max_tokens: Count | None = None
    n: Annotated[int, Field(ge=1, le=2**31 - 1)] = 1
    logprobs: bool = False
    token_ids: bool = False
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None

    def whole(self, known: Mapping[str, Ask]) -> Ask:
        """The ask itself. Raises WireError when what it is told by was never heard."""
        like = known.get(self.like)
        if self.like and like is None:
            msg = f"ask {self.d} is told by its difference to ask {self.like}, which is not known"
            raise WireError(msg)
        before = like.messages if like else ()
        if self.same > len(before) or (self.tools is None and like is None):
            msg = (
                f"ask {self.d} takes {self.same} messages and its tools from ask {self.like!r}, "
                f"which has {len(before)} messages"
            )
            raise WireError(msg)
        tools = like.tools if like and self.tools is None else self.tools or ""
        return Ask(
            self.kind, (*before[: self.same], *self.new), self.text, self.policy,
            tools, self.tool_choice, self.stop,
            self.max_tokens, self.n, self.logprobs, self.token_ids, self.temperature, self.top_p,
            self.seed, self.d,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Choice:
    """One of the `n` continuations of a model ask."""

    text: str
    finish: str = "stop"
    """The engine's finish reason: `stop`, `length`."""
    tool_calls: str = ""
    """`rollcall.schemas.tool_calls`."""
    sampled_tokens: Count = 0
    token_ids: tuple[int, ...] | None = None
    """The sampled token ids, where the ask wanted them or the log-probabilities."""
    logprobs: tuple[float, ...] | None = None
    """Natural, of each sampled token, where the ask wanted them."""
    stopped_by: str = ""
    """The stop string that ended it; empty where none did."""


@dataclass(frozen=True, slots=True)
class ModelReply:
    """The answer of the policy to a model ask."""

    __pydantic_config__ = STRICT

    d: Digest
    choices: tuple[Choice, ...]
    id: str = ""
    """The id of the (first) command that was answered, in hexadecimal."""
    at_ms: int = 0
    """The time of the journal's entry, so that telling it again gives the same bytes."""
    prompt_tokens: Count = 0
    prompt_token_ids: tuple[int, ...] | None = None

    @property
    def sampled_tokens(self) -> int:
        return sum(choice.sampled_tokens for choice in self.choices)


@dataclass(frozen=True, slots=True)
class StepReply:
    """The observation for a step ask, or the acknowledgement of a finish ask."""

    __pydantic_config__ = STRICT

    d: Digest
    text: str
    reward: float = 0.0
    terminated: bool = False
    truncated: bool = False
    info: str = ""


@dataclass(frozen=True, slots=True)
class ErrorReply:
    """Why an ask is not answered, as HTTP says it."""

    __pydantic_config__ = STRICT

    d: Digest
    status: Annotated[int, Field(ge=400, le=599)]
    code: str
    """One word: `context_length_exceeded`, `not_found`, a CallFailed's."""
    error: str
    """In words, for people and for the clients that read them."""


Reply = ModelReply | StepReply | ErrorReply


@dataclass(frozen=True, slots=True)
class AgentAction:
    """The message of a program to an agent's process: ready replies, and the asks that are open."""

    replies: tuple[Reply, ...]
    open: tuple[str, ...] = ()
    """Names of the asks that were heard and have no reply yet; one for each time it was asked."""

    def text(self) -> str:
        """Serialise it as the action of an environment step."""
        replies = [_reply_value(reply) for reply in self.replies]
        return orjson.dumps({"replies": replies, "open": self.open}).decode()

    @classmethod
    def of(cls, text: str) -> "AgentAction":
        """Read an action. Raises WireError for what is none."""
        read = _read(_ActionValue, text, "an agent's action")
        return cls(read.replies, read.open)


@dataclass(frozen=True, slots=True)
class _ActionValue:
    __pydantic_config__ = STRICT

    replies: tuple[Annotated[Reply, Field(union_mode="left_to_right")], ...]
    open: tuple[Digest, ...] = ()


@dataclass(frozen=True, slots=True)
class _AsksValue:
    __pydantic_config__ = STRICT

    asks: tuple[RequestDifference, ...]


def asks_text(asks: Iterable[Ask], known: Iterable[Ask | RequestFingerprint]) -> str:
    """Asks as an observation; each is told by its difference to those heard before it."""
    return text_of(choose_bases(asks, known))


@dataclass(frozen=True, slots=True)
class RequestWithBase:
    """An ask as it is told: by which other one, and how many messages both begin with."""

    ask: Ask
    own: RequestFingerprint
    like: RequestFingerprint | None
    same: int


def choose_bases(
    asks: Iterable[Ask],
    known: Iterable[Ask | RequestFingerprint],
    seen: Mapping[str, RequestFingerprint] | None = None,
) -> list[RequestWithBase]:
    """By which of those heard before it each is to be told; `seen` are prints at hand, by name."""
    heard, told = [RequestFingerprint.of(each) for each in known], []
    prints = {**(seen or {}), **{each.d: each for each in heard}}
    for ask in asks:
        own = prints.get(ask.d) or RequestFingerprint.of(ask)
        told.append(RequestWithBase(ask, own, *own.closest(heard)))
        heard.append(own)
    return told


def text_of(told: Iterable[RequestWithBase]) -> str:
    """Asks as an observation."""
    return orjson.dumps({"asks": [each.ask.value(each.like, each.same) for each in told]}).decode()


def asks_of(text: str, known: Mapping[str, Ask]) -> tuple[Ask, ...]:
    """The asks of an observation, whole. Raises WireError for what does not fit."""
    heard, asks = dict(known), []
    for told in differences_of(text):
        ask = told.whole(heard)
        heard[ask.d] = ask
        asks.append(ask)
    return tuple(asks)


def differences_of(text: str) -> tuple[RequestDifference, ...]:
    """The asks of an observation as they are told. Raises WireError for what is none."""
    return _read(_AsksValue, text, "an observation of asks").asks


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
    """Made when it is first needed: it costs some milliseconds."""
    return TypeAdapter(read)


def _name_of(ask: Ask) -> str:
    messages = [(m.role, m.content, m.tool_calls, m.tool_call_id, m.name) for m in ask.messages]
    named = [
        ask.kind, ask.policy, messages, ask.text, ask.tools, ask.tool_choice, ask.stop,
        ask.max_tokens, ask.n, ask.logprobs, ask.token_ids,
    ]  # fmt: skip
    return blake2b(orjson.dumps(named), digest_size=16).hexdigest()


def _print_of(value: object) -> bytes:
    return blake2b(orjson.dumps(value), digest_size=PRINT_BYTES).digest()


def _shared_messages(ask: Ask, other: Ask) -> int:
    return shared_length(ask.messages, other.messages)


def _closest(
    ask: AnyAsk, known: Sequence[AnyAsk], shared: Callable[[AnyAsk, AnyAsk], int]
) -> tuple[AnyAsk | None, int]:
    """The known ask with which it shares most of its first messages, and how many those are.

    Of equal ones the latest, which is looked at first: as a rule an agent goes on from there.
    """
    best, most = None, 0
    for other in reversed(known):
        same = shared(ask, other)
        if same > most:
            best, most = other, same
        if most == ask.count or same == other.count > 0:
            break
    return best, most


def shared_length(some: Sequence[Message], others: Sequence[Message]) -> int:
    """Return the length of their common prefix."""
    both = min(len(some), len(others))
    if some[:both] == others[:both]:  # as a rule, and as a rule the very objects
        return both
    pairs = zip(some, others, strict=False)
    return next((at for at, (one, other) in enumerate(pairs) if one != other), both)


def _sparse(record: Any, *without: str) -> dict[str, Any]:
    """The fields that differ from their defaults, by name."""
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
