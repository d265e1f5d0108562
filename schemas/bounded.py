"""Readers of words that anybody may have written: bounded in time and memory, and they never raise.

What is malformed counts as absent: each returns None for it, and its caller says so once.
"""

import base64
import binascii
import json
import zlib
from collections.abc import Mapping
from typing import Any

DIGITS = 19
"""Of the largest offset that a log can have."""
LARGEST = 2**63 - 1
JSON_BYTES = 1_000_000


def whole_number(text: str, most: int = LARGEST) -> int | None:
    """A number from 0 to `most` in ASCII digits."""
    if not (len(text) <= DIGITS and text.isascii() and text.isdigit()):
        return None
    number = int(text)
    return number if number <= most else None


def base64_bytes(text: str) -> bytes | None:
    """The bytes that a base64 text stands for."""
    try:
        return base64.b64decode(text, validate=True)
    except (ValueError, binascii.Error):
        return None


def inflated(data: bytes, most_bytes: int) -> bytes | None:
    """What zlib compressed, where it is no more than `most_bytes` and whole."""
    unpacker = zlib.decompressobj()
    try:
        out = unpacker.decompress(data, most_bytes + 1)
    except zlib.error:
        return None
    return out if unpacker.eof and len(out) <= most_bytes else None


def json_object(text: str | bytes, most_bytes: int = JSON_BYTES) -> Mapping[str, Any] | None:
    """A JSON object of bounded size and depth."""
    if len(text) > most_bytes:
        return None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
