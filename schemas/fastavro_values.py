"""Messages read and written by fastavro, for schemas of other releases and for error texts.

Much slower than `rollcall.schemas.avro_code`, which reads and writes our own schemas.
"""

import io
import struct
from typing import Any

import fastavro
from fastavro.repository import SchemaRepositoryError

from rollcall.schemas import messages
from rollcall.schemas.avro_schemas import NAMESPACE, Avro, Schema, branch_name, class_of, schema_of
from rollcall.schemas.errors import WireError

NAMED = True
"""Lets fastavro return a union's record as (name, dict)."""
UNLESS_SINGLE = True
"""Lets it return a plain dict for a union of one record and null: naming it costs time, and fails
for different schemas, where fastavro takes the name for a schema."""
NOT_WRITABLE = (KeyError, TypeError, ValueError, AttributeError, struct.error, OverflowError)
"""Exceptions that fastavro raises on messages of wrong types."""


def write(message: Any) -> bytes:
    """Return the Avro bytes of a message; raise WireError if its types are wrong."""
    record, out = type(message), io.BytesIO()
    try:
        schema = schema_of(record)
        fastavro.schemaless_writer(out, schema, _datum(message, schema))
    except (*NOT_WRITABLE, SchemaRepositoryError) as error:
        msg = f"{record.__name__} cannot be written: {error}"
        raise WireError(msg) from error
    return out.getvalue()


def read(data: io.BytesIO, writer: Schema, reader: Schema) -> dict[str, Any]:
    """Read a record that was written with one schema as a record of another.

    Default values are those of the reader's schema. Raises almost any exception for invalid bytes,
    and SchemaResolutionError if the schemas do not match.
    """
    datum: dict[str, Any] = fastavro.schemaless_reader(data, writer, reader, NAMED, UNLESS_SINGLE)
    return datum


def message_of(datum: Any, avro: Avro) -> Any:
    """Convert a value that fastavro read to a message of ours, or to a value of one."""
    if datum is None:
        return None
    if isinstance(avro, list):
        name, inner = datum if isinstance(datum, tuple) else (avro[-1], datum)
        return message_of(inner, name)
    kind, avro = _kind(avro)
    if kind == "record":
        make = messages.plain_maker(class_of(avro["name"]))
        return make(*(message_of(datum[field["name"]], field["type"]) for field in avro["fields"]))
    if kind == "array":
        return tuple(message_of(item, avro["items"]) for item in datum)
    if kind == "map":
        return dict(datum)
    # fastavro yields str for the JSON default of a bytes field that the writer did not know.
    return datum.encode("latin-1") if kind == "bytes" and isinstance(datum, str) else datum


def _datum(value: Any, avro: Avro) -> Any:
    """Return the value that fastavro writes for a message or one of its fields."""
    if value is None:
        return None
    if isinstance(avro, list):
        return _branch(value, avro)
    kind, avro = _kind(avro)
    if kind == "record":
        return {
            field["name"]: _datum(getattr(value, field["name"]), field["type"])
            for field in avro["fields"]
        }
    if kind == "array":
        return [_datum(item, avro["items"]) for item in value]
    return dict(sorted(value.items())) if kind == "map" else value


def _branch(value: Any, branches: list[Avro]) -> tuple[str, Any]:
    # With the name of the branch, fastavro does not try them one by one.
    if branches[0] == "null":
        return branch_name(branches[1]), _datum(value, branches[1])
    names = {class_of(name): name for name in map(branch_name, branches)}
    name = names[type(value)]
    return name, _datum(value, name)


def _kind(avro: Avro) -> tuple[str, Avro]:
    """Return the kind of a type, and its full definition."""
    if isinstance(avro, str):
        return _kind(schema_of(class_of(avro))) if avro.startswith(NAMESPACE) else (avro, avro)
    return (avro["type"], avro) if isinstance(avro["type"], str) else _kind(avro["type"])
