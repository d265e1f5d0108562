"""Record headers: CloudEvents in binary mode and W3C trace context; few on hot topics.

Nothing that the fold reads is in a header.
"""

from binascii import hexlify
from collections.abc import Sequence
from datetime import UTC, datetime
from hashlib import blake2b
from traceback import format_tb

from rollcall.schemas.ids import digest

Headers = list[tuple[str, bytes]]
UNREADABLE: Sequence[tuple[str, bytes]] = (("headers_unreadable", b"a header name is not UTF-8"),)
"""Stands for all headers of a record whose headers the client cannot read."""
MESSAGE_BYTES = 1024
DLQ_PREFIX = "dlq_"
"""The prefix of what burying adds; replaying takes it off again."""
GIVEN_PREFIX = "given_"
"""Before a name with that prefix that a record came with: it is kept, and no reader obeys it."""
REPLAYED_FROM = "dlq_replayed_from"
"""Which dead letter a record was before an operator sent it again."""


def hot_headers(ce_type: str, ce_id: bytes) -> Headers:
    """The least that a CloudEvents reader needs: id and type; the rest is the topic's."""
    return [("ce_id", hexlify(ce_id)), ("ce_type", ce_type.encode())]


def full_headers(ce_type: str, ce_id: str, source: str, key: str, trace_key: str) -> Headers:
    """All CloudEvents attributes and a traceparent that every record of a rollout shares."""
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
    """One trace per rollout, its id a digest of the rollout's."""
    trace, span = digest("trace", trace_key).hex(), digest("span", trace_key, size_bytes=8).hex()
    return f"00-{trace}-{span}-01".encode()


def as_given(original: Headers | None) -> Headers:
    """The headers of a record that is buried, its own words under names that mean nothing to us."""
    return [
        (f"{GIVEN_PREFIX}{name}" if reserved(name) else name, value)
        for name, value in original or []
    ]


def reserved(name: str) -> bool:
    """Return True for headers that only burying and orders on `dead.letters` may write."""
    return name.strip().casefold().startswith(DLQ_PREFIX)


def texts(headers: Headers | None) -> dict[str, str]:
    """Headers as texts by name, where one comes more than once the last of them."""
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
    """The original headers, the reserved ones renamed, plus where, who and why."""
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
