"""Parsers for untrusted text: bounded in time and memory, and they never raise.

Each returns None for malformed input; its caller reports that once.
"""

import base64
import binascii
import zlib
from collections.abc import Mapping
from typing import Any

import orjson

DIGITS = 19
"""The digits of the largest offset that a log can have."""
LARGEST = 2**63 - 1
JSON_BYTES = 1_000_000


def whole_number(text: str, most: int = LARGEST) -> int | None:
    """Parse a number from 0 to `most` in ASCII digits."""
    if not (len(text) <= DIGITS and text.isascii() and text.isdigit()):
        return None
    number = int(text)
    return number if number <= most else None


def base64_bytes(text: str) -> bytes | None:
    """Decode base64."""
    try:
        return base64.b64decode(text, validate=True)
    except (ValueError, binascii.Error):
        return None


def inflated(data: bytes, most_bytes: int) -> bytes | None:
    """Decompress zlib data; None if it is incomplete or larger than `most_bytes`."""
    unpacker = zlib.decompressobj()
    try:
        out = unpacker.decompress(data, most_bytes + 1)
    except zlib.error:
        return None
    return out if unpacker.eof and len(out) <= most_bytes else None


def json_object(text: str | bytes, most_bytes: int = JSON_BYTES) -> Mapping[str, Any] | None:
    """Parse a JSON object; orjson bounds its depth too."""
    if len(text) > most_bytes:
        return None
    try:
        value = orjson.loads(text)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def whole_metric(value: object) -> int:
    """Return a metric as a count; 0 if it is not a count."""
    counts = isinstance(value, int | float) and 0 <= value <= LARGEST
    return int(value) if counts else 0  # type: ignore[call-overload]
