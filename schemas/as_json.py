"""Messages as plain values for JSON: numbers instead of packed bytes, ids as hex."""

from collections.abc import Mapping
from dataclasses import is_dataclass
from typing import Any

import numpy as np

from rollcall.schemas.avro_schemas import schema_of
from rollcall.schemas.packed import IDS, LOGPROBS, MASK

PACKED: Mapping[str, Any] = {"int32le": IDS, "float32le": LOGPROBS, "uint8": MASK}
"""The dtype for each value of the schemas' property "packed"."""


def plain(value: Any, avro: Any = None) -> Any:
    """Convert a message, or a part of one whose Avro type is `avro`, to JSON values."""
    if is_dataclass(value):
        fields = schema_of(type(value))["fields"]
        read = {
            field["name"]: plain(getattr(value, field["name"]), field["type"]) for field in fields
        }
        return {type(value).__name__: read} if _names_its_branch(avro) else read
    if isinstance(value, bytes):
        packed = _packed(avro)
        return np.frombuffer(value, dtype=PACKED[packed]).tolist() if packed else value.hex()
    if isinstance(value, tuple | list):
        return [plain(item) for item in value]
    return value


def text_of(data: bytes | None) -> str | None:
    """Decode bytes as UTF-8, or else as hex."""
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data.hex()


def _names_its_branch(avro: Any) -> bool:
    """Return True for a union of several records, False for one of one record and null."""
    return isinstance(avro, list) and avro[0] != "null"


def _packed(avro: Any) -> str:
    branches = avro if isinstance(avro, list) else [avro]
    return next((b["packed"] for b in branches if isinstance(b, dict) and "packed" in b), "")
