"""The records of one topic, each as plain values for a line of JSON."""

from collections.abc import Callable, Generator
from contextlib import closing
from operator import attrgetter
from typing import Any

from rollcall.consumers.history.reading.history import History
from rollcall.consumers.history.reading.times import iso
from rollcall.consumers.log.protocols import Reader, Record
from rollcall.consumers.log.reading import from_now_on, to_the_end
from rollcall.consumers.loop.dead_letter_records import buried_topic
from rollcall.schemas.as_json import plain, text_of
from rollcall.schemas.errors import Refused, WireError
from rollcall.schemas.names import unknown_name
from rollcall.schemas.topics import Topics

BY_TIME = attrgetter("timestamp_ms", "partition", "offset")

Decode = Callable[[Record], dict[str, Any]]


def topic_named(history: History, text: str) -> str:
    """Return the full name of a topic; raises Refused with the nearest name, and Unavailable."""
    names, prefix = history.log.topic_names(), history.topics.prefix
    for name in (f"{prefix}{text}", text):
        if name in names:
            return name
    ours = [name.removeprefix(prefix) for name in names if name.startswith(prefix)]
    if not ours:
        msg = f"no topic {text!r}, nor any other under {prefix!r}; run `rollcall topics apply`"
        raise Refused(msg)
    raise unknown_name("topic", text.removeprefix(prefix), ours)


def records_of(
    history: History, topic: str, *, follow: bool, last: int
) -> Generator[Record, None, None]:
    """Yield a topic's records, in order within each partition; without `follow` to its present end.

    With `last`, which counts over all partitions, sorted by time. Raises Unavailable.
    """
    with closing(_reader(history, topic, last)) as reader:
        if last:
            yield from sorted(to_the_end(reader), key=BY_TIME)[-last:]
        else:
            yield from to_the_end(reader)
        if follow:
            yield from from_now_on(reader)


def _reader(history: History, topic: str, last: int) -> Reader:
    """Return a reader from the log start, or from `last` before every partition's end."""
    if not last:
        return history.log.reader([topic])
    bounds = history.log.bounds(topic)
    starts = {(topic, number): max(low, end - last) for number, (low, end) in bounds.items()}
    return history.log.reader([topic], starts)


def envelope(record: Record) -> dict[str, Any]:
    """Return all of a record except its value."""
    return {
        "partition": record.partition,
        "offset": record.offset,
        "time": iso(record.timestamp_ms),
        "key": text_of(record.key),
        "headers": _headers(record),
    }


def _headers(record: Record) -> dict[str, Any]:
    """Return headers by name; one that occurs more than once has a list of values."""
    headers: dict[str, list[str | None]] = {}
    for name, value in record.headers or []:
        headers.setdefault(name, []).append(text_of(value))
    return {name: values if len(values) > 1 else values[0] for name, values in headers.items()}


def in_hex(record: Record) -> dict[str, Any]:
    """Return the value as hexadecimal bytes."""
    return {"value": None if record.value is None else record.value.hex()}


def decoder(history: History, topic: str) -> Decode:
    """Return a decoder of values; dead letters are decoded as records of their original topic.

    Raises Refused for a topic that is not in the manifest.
    """
    expected = history.topics.record_of(topic)

    def decode(record: Record) -> dict[str, Any]:
        kind = expected or _buried_kind(history.topics, record)
        if kind is None:
            return in_hex(record)
        try:
            return {"value": plain(history.codec.decode(record.value, kind))}
        except WireError as error:
            return in_hex(record) | {"error": f"{type(error).__name__}: {error}"}

    return decode


def _buried_kind(topics: Topics, record: Record) -> type | None:
    source = buried_topic(record)
    try:
        return topics.record_of(source) if source else None
    except Refused:
        return None
