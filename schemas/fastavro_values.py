"""Messages by way of fastavro, which resolves schemas, and judges what generated code refuses.

Slower by far than the code of `rollcall.schemas.avro_code`, which does the same where the writer's
schema is our own.
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
"""Have fastavro name the branch where a union's value is a record: it comes as (name, dict)."""
UNLESS_SINGLE = True
"""But not that of a record or null: to ask costs time, and not to ask fails where schemas differ
(fastavro takes a name for a schema)."""
NOT_WRITABLE = (KeyError, TypeError, ValueError, AttributeError, struct.error, OverflowError)
"""Exceptions that fastavro raises on messages of wrong types."""


def write(message: Any) -> bytes:
    """The Avro bytes of a message; raises WireError where its types are wrong."""
    record, out = type(message), io.BytesIO()
    try:
        schema = schema_of(record)
        fastavro.schemaless_writer(out, schema, _datum(message, schema))
    except (*NOT_WRITABLE, SchemaRepositoryError) as error:
        msg = f"{record.__name__} cannot be written: {error}"
        raise WireError(msg) from error
    return out.getvalue()


def read(data: io.BytesIO, writer: Schema, reader: Schema) -> dict[str, Any]:
    """A record that was written with one schema, as another has it.

    Values that come from a default are the schema's own. Raises nearly anything on bytes that are
    no such record, and SchemaResolutionError where the schemas do not fit.
    """
    datum: dict[str, Any] = fastavro.schemaless_reader(data, writer, reader, NAMED, UNLESS_SINGLE)
    return datum


def message_of(datum: Any, avro: Avro) -> Any:
    """The message, or a value of one, that a type of ours makes of what fastavro read."""
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
    # Where the branch is named, fastavro need not try them one by one.
    if branches[0] == "null":
        return branch_name(branches[1]), _datum(value, branches[1])
    names = {class_of(name): name for name in map(branch_name, branches)}
    name = names[type(value)]
    return name, _datum(value, name)


def _kind(avro: Avro) -> tuple[str, Avro]:
    """The kind of a type, and the type with all that it says of itself."""
    if isinstance(avro, str):
        return _kind(schema_of(class_of(avro))) if avro.startswith(NAMESPACE) else (avro, avro)
    return (avro["type"], avro) if isinstance(avro["type"], str) else _kind(avro["type"])
