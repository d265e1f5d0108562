"""Record headers: CloudEvents in binary mode and W3C trace context; few on hot topics.

The fold reads no header.
"""

from binascii import hexlify
from collections.abc import Sequence
from datetime import UTC, datetime
from hashlib import blake2b
from traceback import format_tb

from rollcall.schemas.ids import digest

Headers = list[tuple[str, bytes]]
UNREADABLE: Sequence[tuple[str, bytes]] = (("headers_unreadable", b"a header name is not UTF-8"),)
"""Replaces the headers of a record whose headers the client cannot read."""
MESSAGE_BYTES = 1024
DLQ_PREFIX = "dlq_"
"""The prefix of headers that a dead letter adds; a replay removes them."""
GIVEN_PREFIX = "given_"
"""Added to a record's own header names that start with DLQ_PREFIX, so that no reader obeys them."""
REPLAYED_FROM = "dlq_replayed_from"
"""The place of the dead letter that an operator replayed as this record."""


def hot_headers(ce_type: str, ce_id: bytes) -> Headers:
    """Return the minimum for a CloudEvents reader: id and type; the topic implies the rest."""
    return [("ce_id", hexlify(ce_id)), ("ce_type", ce_type.encode())]


def full_headers(ce_type: str, ce_id: str, source: str, key: str, trace_key: str) -> Headers:
    """Return all CloudEvents attributes, and a traceparent shared by all records of a rollout."""
    return [
        ("ce_specversion", b"1.0"),
        ("ce_id", ce_id.encode()),
        ("ce_type", f"rollcall.{ce_type}".encode()),
        ("ce_source", source.encode()),
        ("ce_time", datetime.now(UTC).isoformat().encode()),
        ("ce_partitionkey", key.encode()),
        ("content-type", b"application/avro"),
        ("traceparent", traceparent(trace_key)),
    ]


def traceparent(trace_key: str) -> bytes:
    """Return the traceparent of a rollout: one trace each, with a digest of its id."""
    trace, span = digest("trace", trace_key).hex(), digest("span", trace_key, size_bytes=8).hex()
    return f"00-{trace}-{span}-01".encode()


def as_given(original: Headers | None) -> Headers:
    """Return a dead letter's original headers; names that are reserved get a prefix."""
    return [
        (f"{GIVEN_PREFIX}{name}" if reserved(name) else name, value)
        for name, value in original or []
    ]


def reserved(name: str) -> bool:
    """Return True for header names that only dead letters and their marks may use."""
    return name.strip().casefold().startswith(DLQ_PREFIX)


def texts(headers: Headers | None) -> dict[str, str]:
    """Return headers as texts by name; the last one counts if a name is repeated."""
    return {name: (value or b"").decode("utf-8", "replace") for name, value in headers or []}


def dead_letter_headers(
    original: Headers | None,
    topic: str,
    partition: int,
    offset: int,
    timestamp_ms: int,
    group: str,
    error: Exception,
) -> Headers:
    """Return the headers of a dead letter: the original ones, and place, group and error."""
    stack = "".join(format_tb(error.__traceback__))
    added = {
        "dlq_topic": topic,
        "dlq_partition": partition,
        "dlq_offset": offset,
        "dlq_timestamp": timestamp_ms,
        "dlq_group": group,
        "dlq_error": type(error).__name__,
        "dlq_message": str(error).encode(errors="replace")[:MESSAGE_BYTES].decode(errors="ignore"),
        "dlq_stack_hash": blake2b(stack.encode(), digest_size=8).hexdigest(),
        "dlq_attempt": 1,
        "dlq_first_failed_at": datetime.now(UTC).isoformat(),
    }
    return [*as_given(original), *((name, str(value).encode()) for name, value in added.items())]
