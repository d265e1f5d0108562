"""Serialisation of a parsed request, as bytes for another process of the same release.

Texts follow a short head with their lengths, so megabytes of them are copied and not parsed. The
bytes are never stored.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any

import orjson

from rollcall.inference.dialects.dialect import Conversations, ParsedRequest
from rollcall.schemas.agent_requests import AgentRequest
from rollcall.schemas.messages import Message

HEAD_BYTES = 8
LONG = ("messages", "text", "tools", "fingerprint")
"""Fields of a request that are not in the head but behind it, or nowhere."""
Lengths = list[int]


def serialise_request(parsed: ParsedRequest) -> bytes:
    """Serialise a request; its `echo` is written as JSON."""
    request, texts = parsed.request, list[bytes]()
    head = {
        "request": {
            one.name: getattr(request, one.name) for one in fields(request) if one.name not in LONG
        },
        "texts": _put(texts, (request.text, request.tools)),
        "messages": [_message_put(texts, message) for message in request.messages],
        "turns": len(parsed.turns),
        "echo": [(name, _put_raw(texts, orjson.dumps(parsed.echo[name]))) for name in parsed.echo],
        "flags": (parsed.stream, parsed.include_usage, parsed.alternatives),
    }
    return _whole(head, texts)


def request_of(data: bytes) -> ParsedRequest:
    """Read a request back; it keeps its name."""
    head, texts = _parts(data)
    text, tools = (texts.next_text(length) for length in head["texts"])
    messages = tuple(_message_of(texts, entry) for entry in head["messages"])
    echo = {name: orjson.Fragment(texts.next_bytes(length)) for name, length in head["echo"]}
    rest = head["request"] | {"stop": tuple(head["request"]["stop"])}
    request = AgentRequest(messages=messages, text=text, tools=tools, **rest)
    stream, include_usage, alternatives = head["flags"]
    turns = messages[len(messages) - head["turns"] :]
    return ParsedRequest(request, stream, include_usage, alternatives, echo, turns)


def serialise_conversations(conversations: Mapping[str, Sequence[Message]]) -> bytes:
    """Serialise earlier conversations, by response."""
    texts: list[bytes] = []
    head = [
        (name, [_message_put(texts, message) for message in messages])
        for name, messages in conversations.items()
    ]
    return _whole(head, texts)


def conversations_of(data: bytes) -> Conversations:
    """Read conversations back."""
    head, texts = _parts(data)
    return {name: [_message_of(texts, entry) for entry in entries] for name, entries in head}


class _Texts:
    """A reader of the texts, one after the other."""

    def __init__(self, data: bytes, at: int) -> None:
        self._data = memoryview(data)
        self._at = at

    def next_bytes(self, length: int) -> bytes:
        begin, self._at = self._at, self._at + length
        return bytes(self._data[begin : self._at])

    def next_text(self, length: int) -> str:
        begin, self._at = self._at, self._at + length
        return str(self._data[begin : self._at], "utf-8")


def _message_put(texts: list[bytes], message: Message) -> tuple[str, Lengths]:
    parts = (message.content, message.tool_calls, message.tool_call_id, message.name)
    return message.role, _put(texts, parts)


def _message_of(texts: _Texts, entry: tuple[str, Lengths]) -> Message:
    role, lengths = entry
    return Message(role, *(texts.next_text(length) if length else "" for length in lengths))


def _put(texts: list[bytes], parts: Iterable[str]) -> Lengths:
    return [_put_raw(texts, part.encode()) for part in parts]


def _put_raw(texts: list[bytes], part: bytes) -> int:
    texts.append(part)
    return len(part)


def _whole(head: object, texts: Iterable[bytes]) -> bytes:
    written = orjson.dumps(head)
    return b"".join((len(written).to_bytes(HEAD_BYTES, "big"), written, *texts))


def _parts(data: bytes) -> tuple[Any, _Texts]:
    begin = HEAD_BYTES + int.from_bytes(data[:HEAD_BYTES], "big")
    return orjson.loads(memoryview(data)[HEAD_BYTES:begin]), _Texts(data, begin)


class ConversationMissing(Exception):
    """A response that a request continues from is not among the loaded conversations."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


class LoadedConversations(Mapping[str, Sequence[Message]]):
    """A mapping of conversations of which only some are loaded; the missing ones are known."""

    def __init__(self, some: Conversations, unknown: Iterable[str] = ()) -> None:
        self._some = some
        self._unknown = frozenset(unknown)

    def __getitem__(self, name: str) -> Sequence[Message]:
        """Raise KeyError for one that does not exist, ConversationMissing for one that is not
        loaded."""
        if name in self._some or name in self._unknown:
            return self._some[name]
        raise ConversationMissing(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._some)

    def __len__(self) -> int:
        return len(self._some)
