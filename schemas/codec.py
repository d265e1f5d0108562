"""Messages to bytes and back: Confluent prefix (magic byte, 4-byte schema id) and Avro binary.

What cannot be read raises a WireError and nothing else; the loop buries it and goes on. A registry
that is away raises Unavailable, which is never taken for bad bytes.
"""

import dataclasses
import io
import json
import struct
from collections.abc import Callable
from functools import cache as untyped_cache
from importlib.resources import files
from typing import Any, Protocol, TypeVar, cast

import fastavro
from fastavro.schema import load_schema, to_parsing_canonical_form

from schemas import binary, messages
from schemas.binary import Read, Write
from schemas.errors import BadBytes, BadMagic, LengthsDisagree, UnknownSchema, WireError

M = TypeVar("M")
F = TypeVar("F", bound=Callable[..., Any])
Schema = dict[str, Any]

UNIONS = {"return_record_name": True, "return_record_name_override": True}
"""Name the branch of a union of records, but not that of a record or null."""
PREFIX = struct.Struct(">BI")
NAMESPACE = "rollcall."
# What fastavro raises on bytes that are no record of the schema, found by fuzzing.
NOT_AVRO = (
    EOFError,
    IndexError,
    KeyError,
    MemoryError,
    OverflowError,
    StopIteration,
    TypeError,
    ValueError,
    struct.error,
)
NOT_A_SCHEMA = (
    AttributeError,
    KeyError,
    RecursionError,
    TypeError,
    ValueError,
    fastavro.schema.SchemaParseException,
)


def cache(function: F) -> F:
    """`functools.cache` that keeps the signature: types are hashable, mypy doubts it."""
    return cast(F, untyped_cache(function))


class Registry(Protocol):
    """Where schema ids come from. Ids are immutable, so whoever asks may keep the answer."""

    def writer_id(self, topic: str, schema: str) -> int:
        """The id under which the topic's values are written.

        Raises TopicsDiffer when it is not registered, and Unavailable.
        """
        ...

    def schema_of(self, schema_id: int) -> str:
        """Raises UnknownSchema when the registry denies the id, and Unavailable."""
        ...


@cache
def schema_of(record: type) -> Schema:
    """The parsed, self-contained schema of a message type."""
    path = files("schemas") / "avro" / f"{NAMESPACE}{record.__name__}.avsc"
    return cast(Schema, load_schema(str(path)))


@cache
def schema_text(record: type) -> str:
    """What is registered: the schema with all it names in place, as compact JSON.

    Keys are sorted, since fastavro leaves them in another order in every process.
    """
    bare = _bare(schema_of(record))
    return json.dumps(bare, separators=(",", ":"), ensure_ascii=False, sort_keys=True)


@cache
def _canonical(record: type) -> str:
    return str(to_parsing_canonical_form(schema_of(record)))


def _bare(schema: Any) -> Any:
    if isinstance(schema, dict):
        return {k: _bare(v) for k, v in schema.items() if not k.startswith("__")}
    return [_bare(item) for item in schema] if isinstance(schema, list) else schema


def _named(name: str) -> type:
    return cast(type, getattr(messages, name.removeprefix(NAMESPACE)))


@cache
def _reader_of(name: str) -> Read:
    record = _named(name)
    return binary.reader(record, schema_of(record), _reader_of)


@cache
def _writer_of(name: str) -> Write:
    record = _named(name)
    return binary.writer(schema_of(record), _writer_of)


def _unwritable_field(message: Any) -> str:
    """The first field of a message that cannot be written by itself."""
    for field in schema_of(type(message))["fields"]:
        try:
            binary.writer({"fields": [field]}, _writer_of)(message)
        except binary.UNWRITABLE:
            return str(field["name"])
    return ""


class Codec:
    """Encodes for a topic, decodes for a message type; one per process."""

    def __init__(self, registry: Registry) -> None:
        self.registry = registry
        self._prefixes: dict[str, bytes] = {}
        self._written_by: dict[tuple[int, type], Schema] = {}

    def encode(self, topic: str, message: Any) -> bytes:
        """The value of one record: prefix and Avro bytes."""
        record = type(message)
        prefix = self._prefixes.get(topic)
        if prefix is None:
            self.prepare(topic, record)
            prefix = self._prefixes[topic]
        try:
            return prefix + _writer_of(record.__name__)(message)
        except binary.UNWRITABLE as error:
            field = _unwritable_field(message)
            msg = f"{record.__name__} cannot be written: {error} in field {field!r}"
            raise WireError(msg) from error

    def prepare(self, topic: str, record: type) -> None:
        """Look the writer id of a topic up; raises TopicsDiffer and Unavailable."""
        schema_id = self.registry.writer_id(topic, schema_text(record))
        self._prefixes[topic] = PREFIX.pack(0, schema_id)

    def decode(self, value: bytes | None, expected: type[M]) -> M:
        """Read a value as the expected message; raises WireError or Unavailable."""
        if value is None:
            msg = f"a null value where a {expected.__name__} belongs; tombstones mean nothing here"
            raise BadBytes(msg)
        if len(value) < PREFIX.size or value[0] != 0:
            raise BadMagic(value[: PREFIX.size])
        schema_id = PREFIX.unpack_from(value)[1]
        writer = self._written_by.get((schema_id, expected)) or self._learn(schema_id, expected)
        return self._read(value, writer, expected)

    def _learn(self, schema_id: int, expected: type) -> Schema:
        try:
            parsed = fastavro.parse_schema(json.loads(self.registry.schema_of(schema_id)))
            # Registries spell names their own way; what fixes the bytes is the canonical form.
            if to_parsing_canonical_form(parsed) == _canonical(expected):
                parsed = schema_of(expected)
        except NOT_A_SCHEMA as error:
            msg = f"the registry's schema {schema_id} is no Avro schema: {error}"
            raise UnknownSchema(msg) from error
        # A schema need not be a record: it may be a bare type or a union, here as text or list.
        found = parsed.get("name") if isinstance(parsed, dict) else parsed
        wanted = f"{NAMESPACE}{expected.__name__}"
        if found != wanted:
            msg = f"schema {schema_id} is of {found!r}, but {wanted!r} belongs here"
            raise UnknownSchema(msg)
        self._written_by[schema_id, expected] = parsed
        return cast(Schema, parsed)

    def _read(self, value: bytes, writer: Schema, expected: type[M]) -> M:
        ours = writer is schema_of(expected)
        data, at = (value, PREFIX.size) if ours else (_brought(value, writer, expected), 0)
        try:
            message, end = _reader_of(expected.__name__)(data, at)
        except LengthsDisagree:
            raise
        except binary.DAMAGED as error:
            msg = f"{expected.__name__} cannot be read: {type(error).__name__}: {error}"
            raise BadBytes(msg) from error
        if end != len(data):
            msg = f"{expected.__name__} ends at byte {end} of {len(data)}"
            raise BadBytes(msg)
        return cast(M, message)


@cache
def _target(record: type) -> Schema:
    """Our schema as fastavro brings others to it: it hands defaults of bytes out as they stand."""
    schema = cast(Schema, fastavro.parse_schema(json.loads(schema_text(record))))
    _with_bytes(schema)
    return schema


def _with_bytes(schema: Any) -> None:
    """Turn the defaults of bytes, which JSON has as text, into bytes."""
    if isinstance(schema, list):
        for item in schema:
            _with_bytes(item)
    elif isinstance(schema, dict):
        kind = schema.get("type")
        plain = kind.get("type") if isinstance(kind, dict) else kind
        if plain == "bytes" and isinstance(schema.get("default"), str):
            schema["default"] = schema["default"].encode("latin-1")
        for key in ("type", "items", "values", "fields"):
            _with_bytes(schema.get(key))


def _brought(value: bytes, writer: Schema, expected: type) -> bytes:
    """The bytes of a message of another version, as this version would have written it."""
    data, out = io.BytesIO(value), io.BytesIO()
    data.seek(PREFIX.size)
    try:
        read = fastavro.schemaless_reader(data, writer, _target(expected), **UNIONS)
        fastavro.schemaless_writer(out, _target(expected), read)
    except NOT_AVRO as error:
        msg = f"{expected.__name__} cannot be read: {type(error).__name__}: {error}"
        raise BadBytes(msg) from error
    except fastavro.read.SchemaResolutionError as error:
        msg = f"{expected.__name__} was written with a schema ours cannot read: {error}"
        raise UnknownSchema(msg) from error
    if data.tell() != len(value):
        msg = f"{expected.__name__} ends at byte {data.tell()} of {len(value)}"
        raise BadBytes(msg)
    return out.getvalue()


class LocalRegistry:
    """Schema ids dealt in this process: for the in-memory log and for tests."""

    def __init__(self) -> None:
        self._texts: list[str] = []

    def writer_id(self, topic: str, schema: str) -> int:
        del topic
        if schema not in self._texts:
            self._texts.append(schema)
        return self._texts.index(schema) + 1

    def schema_of(self, schema_id: int) -> str:
        if not 0 < schema_id <= len(self._texts):
            msg = f"no schema has id {schema_id}"
            raise UnknownSchema(msg)
        return self._texts[schema_id - 1]


def message_of(value: Any) -> dict[str, Any]:
    """A message as plain values, for people and JSON; packed bytes stay bytes."""
    return dataclasses.asdict(value)
