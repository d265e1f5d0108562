"""A vocabulary for conversations whose tokens are unknown: reversible ids made from the text.

A server that takes messages and returns text does not show its token ids. Code that counts and
slices ids uses these instead: three bytes of UTF-8 per id, about as many ids as a real tokenizer
gives, and marks for roles, fields and tool calls. The messages so far are read from the ids alone,
so a server that never saw them can continue the conversation.

These are not a model's tokens: answers made of them are untrainable.
"""

from collections.abc import Iterable, Iterator, Sequence

from rollcall.schemas.errors import FailureCode, WorkFailed
from rollcall.schemas.ids import digest
from rollcall.schemas.messages import Message

BYTES = 3
"""The most bytes of an id, which is their count above 24 bits, and the bytes, big-endian."""
MARKS = ("system", "user", "assistant", "tool", "name", "tool_call_id", "tool_calls")
ROLES = MARKS[:4]
FIRST_MARK = (BYTES + 1) << 24
MARK = {name: FIRST_MARK + number for number, name in enumerate(MARKS)}
DIGEST = digest("transcript", BYTES, *MARKS).hex()
"""The digest of this vocabulary in answers, in place of a template's."""


def text_ids(text: str) -> list[int]:
    """Return the ids of a text, which must be encodable as UTF-8."""
    data = text.encode()
    pieces = (data[at : at + BYTES] for at in range(0, len(data), BYTES))
    return [len(piece) << 24 | int.from_bytes(piece, "big") for piece in pieces]


def message_ids(messages: Iterable[Message]) -> list[int]:
    """Return the ids of messages. Raises WorkFailed(`not_renderable`) for an unknown role."""
    ids: list[int] = []
    for message in messages:
        if message.role not in ROLES:
            msg = f"role {message.role!r}; servers of messages know {', '.join(ROLES)}"
            raise WorkFailed(FailureCode.NOT_RENDERABLE, msg, retriable=False)
        ids += [MARK[message.role], *answer_ids(message.content, "")]
        for field in ("name", "tool_call_id"):
            if value := getattr(message, field):
                ids += [MARK[field], *text_ids(value)]
        ids += answer_ids("", message.tool_calls)
    return ids


def answer_ids(content: str, tool_calls: str) -> list[int]:
    """Return the ids that follow the mark of a role."""
    return text_ids(content) + ([MARK["tool_calls"], *text_ids(tool_calls)] if tool_calls else [])


def messages_of(ids: Sequence[int]) -> list[Message]:
    """Read the messages back from their ids.

    Raises WorkFailed(`bad_prefix`) for ids of another vocabulary.
    """
    try:
        return [Message(role, **dict(fields)) for role, fields in _parts(ids)]
    except (ValueError, OverflowError, IndexError, TypeError) as error:
        msg = (
            "the prefix is no transcript, so it was begun by another engine; a conversation is "
            "gone on with by the engine that began it"
        )
        raise WorkFailed(FailureCode.BAD_PREFIX, msg, retriable=False) from error


def _parts(ids: Sequence[int]) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """Yield each message as its role and fields."""
    if not ids:
        return
    starts = [at for at, each in enumerate(ids) if each >= FIRST_MARK]
    if starts[:1] != [0] or ids[0] - FIRST_MARK >= len(ROLES):
        msg = "no message begins here"
        raise ValueError(msg)
    role, fields = "", list[tuple[str, str]]()
    for start, end in zip(starts, [*starts[1:], len(ids)], strict=True):
        name = MARKS[ids[start] - FIRST_MARK]
        text = b"".join(map(_bytes, ids[start + 1 : end])).decode()
        if name not in ROLES:
            fields.append((name, text))
            continue
        if role:
            yield role, fields
        role, fields = name, [("content", text)]
    if role:
        yield role, fields


def _bytes(each: int) -> bytes:
    size, value = each >> 24, each & 0xFFFFFF
    if not 1 <= size <= BYTES:
        msg = f"{each} is no id of a transcript"
        raise ValueError(msg)
    return value.to_bytes(size, "big")
