"""Messages to bytes and back: Confluent prefix (magic byte, 4-byte schema id) and Avro binary.

Unreadable bytes raise a WireError and nothing else; the loop sends them to `dead.letters` and goes
on. An unavailable registry raises Unavailable, so that it is never taken for bad bytes. A value
that is read would be written as the same bytes (`rollcall.schemas.avro_code`).
"""

import copy
import io
import json
import struct
import time
from collections.abc import Callable, Mapping
from functools import lru_cache
from operator import attrgetter
from typing import Any, NamedTuple, Protocol, TypeVar, cast

import fastavro
from fastavro.schema import to_parsing_canonical_form

from rollcall.schemas import avro_code, fastavro_values
from rollcall.schemas.avro_schemas import (
    NAMESPACE,
    Schema,
    canonical,
    schema_of,
    schema_text,
)
from rollcall.schemas.circuit_breaker import CircuitBreaker
from rollcall.schemas.claims import (
    NO_STORE,
    Objects,
    ReadOnlyObjects,
    claim_in,
    claim_of,
    replace_by_claim,
    without_object,
)
from rollcall.schemas.errors import (
    BadBytes,
    BadMagic,
    LengthsDisagree,
    ObjectLost,
    UnknownSchema,
    WrongSchema,
)
from rollcall.schemas.fastavro_values import NOT_WRITABLE, message_of
from rollcall.schemas.message_code import MessageCode, message_code, writers_around
from rollcall.schemas.messages import Claim
from rollcall.schemas.schema_memory import SchemaMemory
from rollcall.schemas.store_urls import as_store_unavailable

M = TypeVar("M")

LIGHTS = 10_000
"""The number of values that are remembered as light ones."""
SCHEMAS = 256
"""The number of parsed writers' schemas that are cached; a process meets some dozens."""
SCHEMA_CHARS = 500_000
"""Ten times the largest of ours. The limit exists because code is generated for each schema."""
PREFIX = struct.Struct(">BI")
PREFIX_BYTES = PREFIX.size
TOO_SHORT = (EOFError, IndexError, struct.error)
# Further exceptions for bytes that are not a record of the schema, found by fuzzing.
NOT_AVRO = (
    KeyError,
    MemoryError,
    OverflowError,
    RecursionError,
    StopIteration,
    TypeError,
    ValueError,
)
NOT_A_SCHEMA = (
    ArithmeticError,
    AttributeError,
    LookupError,
    MemoryError,
    RecursionError,
    SyntaxError,
    TypeError,
    ValueError,
    fastavro.schema.SchemaParseException,
)


class Registry(Protocol):
    """The source of schema ids. Ids are immutable, so callers may cache them."""

    def writer_id(self, topic: str, schema: str) -> int:
        """Return the schema id with which the topic's values are written.

        Raises TopicsDiffer if the schema is not registered, and Unavailable.
        """
        ...

    def schema_of(self, schema_id: int) -> str:
        """Return the schema of an id. Raises UnknownSchema and Unavailable."""
        ...


class _WriterSchema(NamedTuple):
    """The schema of one id, with which values of a record were written."""

    schema: Schema
    check: avro_code.Check
    read: avro_code.Read | None
    """Set if the schema is our own."""


class Codec:
    """Encodes for a topic, decodes for a message type; one per process."""

    def __init__(
        self,
        registry: Registry,
        *,
        objects: Objects | None = None,
        clock: Callable[[], float] = time.monotonic,
        code: MessageCode | None = None,
        memory: SchemaMemory | None = None,
    ) -> None:
        """Without `objects`, every value is written whole. `code` defaults to the fastest.

        Without `memory`, the meaning of schema ids is remembered only by this codec.
        """
        self.code = code or message_code()
        self.registry = registry
        self.objects = objects
        self.clock = clock
        self.memory = memory or SchemaMemory()
        self._ask_registry = CircuitBreaker(clock).ask
        self._ask_put, self._ask_get = CircuitBreaker(clock).ask, CircuitBreaker(clock).ask
        self._lights: dict[bytes, None] = {}
        """The last values that were read as light ones, in order."""
        self._prefixes: dict[str, bytes] = {}
        self._written: dict[tuple[bytes, type], _WriterSchema] = {}
        """Keyed by the prefix of a value and the expected message type."""

    def encode(self, topic: str, message: Any) -> bytes:
        """Return the value of one record: prefix and Avro bytes.

        A value that is too heavy for the log is put into the object store, and a light one is
        returned. Raises WireError for a message of wrong types, and Unavailable if registry or
        store is unavailable.
        """
        return self._light(topic, message, self._encoded(topic, message))

    def _encoded(self, topic: str, message: Any) -> bytes:
        record = type(message)
        prefix = self._prefixes.get(topic) or self.prepare(topic, record)
        out = [prefix]
        try:
            self.code.writer(record)(message, out)
            return b"".join(out)
        except NOT_WRITABLE:
            return prefix + fastavro_values.write(message)

    def _light(self, topic: str, message: Any, value: bytes) -> bytes:
        """Return the bytes to write to the log for a whole value: usually the value itself."""
        objects = self.objects
        if objects is None or len(value) <= objects.above_bytes:
            return value
        if replace_by_claim(message, claim_of(b"")) is None:
            return value
        claim = self._ask_put(lambda: self._put(objects, value))
        return self._encoded(topic, replace_by_claim(message, claim))

    def _put(self, objects: Objects, value: bytes) -> Claim:
        with as_store_unavailable("the object store cannot be written to"):
            return objects.put(value)

    def _get(self, objects: Objects, claim: Claim) -> bytes:
        with as_store_unavailable("the object store cannot be read"):
            return objects.get(claim)

    def writing_whole(self) -> "Codec":
        """Return a codec that reads the same and writes every value whole, for comparisons."""
        same = copy.copy(self)
        same.objects = self.objects and ReadOnlyObjects(self.objects)
        return same

    def encode_around(self, topic: str, message: Any, field: str, value: bytes | None) -> bytes:
        """Encode like `encode`; `value` is the record from which one field of the message was read.

        Its bytes are copied if they were written with our own schema. For a trajectory this is
        eight times as fast as encoding it again.
        """
        record, inner = type(message), type(getattr(message, field))
        known = value and self._written.get((value[:PREFIX_BYTES], inner))
        if value is None or not known or known.read is None or value in self._lights:
            return self.encode(topic, message)
        out = [self._prefixes.get(topic) or self.prepare(topic, record)]
        before, after = writers_around(record, field)
        try:
            before(message, out)
            out.append(value[PREFIX_BYTES:])
            after(message, out)
        except NOT_WRITABLE:
            return self.encode(topic, message)
        return self._light(topic, message, b"".join(out))

    def prepare(self, topic: str, record: type) -> bytes:
        """Look up the prefix of a topic's values; see `prepare_all`."""
        self.prepare_all({topic: record})
        return self._prefixes[topic]

    def prepare_all(self, records: Mapping[str, type]) -> None:
        """Look up the prefixes of the values of topics, given their message types.

        Raises TopicsDiffer and Unavailable.
        """
        ids = {topic: self._writer_id(topic, record) for topic, record in records.items()}
        self.memory.tie_all({ids[topic]: canonical(record) for topic, record in records.items()})
        for topic, record in records.items():
            self.memory.tie(ids[topic], canonical(record))  # several may have been given one id
            self._prefixes[topic] = PREFIX.pack(0, ids[topic])

    def _writer_id(self, topic: str, record: type) -> int:
        return self._ask_registry(lambda: self.registry.writer_id(topic, schema_text(record)))

    def decode(self, value: bytes | None, expected: type[M]) -> M:
        """Read a value as the expected message; raise WireError or Unavailable.

        The whole message of a light value is read from the object store.
        """
        message = self._decoded(value, expected)
        claim = claim_in(message)
        if claim is None:
            return message
        try:
            return self._fetched(cast(bytes, value), claim, expected)
        except ObjectLost as error:
            told: M | None = without_object(message)
            if told is not None:
                return told
            error.light = message
            raise

    def _decoded(self, value: bytes | None, expected: type[M]) -> M:
        if value is None:
            msg = f"a null value instead of a {expected.__name__}; tombstones have no meaning here"
            raise BadBytes(msg)
        prefix = value[:PREFIX_BYTES]
        written = self._written.get((prefix, expected)) or self._learn(prefix, expected)
        read = written.read
        message: M = (
            _resolved(value, written, expected) if read is None else _whole(value, expected, read)
        )
        return message

    def _fetched(self, light: bytes, claim: Claim, expected: type[M]) -> M:
        objects = self.objects
        if objects is None:
            msg = f"a {expected.__name__} claims object {claim.sha256[:80]!r}: {NO_STORE}"
            raise ObjectLost(msg)
        message = self._decoded(self._ask_get(lambda: self._get(objects, claim)), expected)
        if claim_in(message) is not None:
            msg = f"object {claim.uri} holds a {expected.__name__} that claims another object"
            raise BadBytes(msg)
        if len(self._lights) >= LIGHTS:
            del self._lights[next(iter(self._lights))]
        self._lights[light] = None
        return message

    def pick(self, value: bytes | None, expected: type, *paths: str) -> tuple[Any, ...]:
        """Return some fields of the expected message, such as "trajectory.attempt".

        The object of a light value is not fetched. Raises WireError or Unavailable.
        """
        message: Any = self._decoded(value, expected)
        return tuple(attrgetter(path)(message) for path in paths)

    def _learn(self, prefix: bytes, expected: type) -> _WriterSchema:
        if len(prefix) < PREFIX_BYTES or prefix[0] != 0:
            raise BadMagic(prefix)
        schema_id: int = PREFIX.unpack(prefix)[1]
        text = self._ask_registry(lambda: self.registry.schema_of(schema_id))
        if len(text) > SCHEMA_CHARS:
            size = f"{len(text):,} characters; at most {SCHEMA_CHARS:,} are read"
            msg = f"schema {schema_id} has {size}"
            raise WrongSchema(msg)
        try:
            found, form, known = _read_schema(text, expected)
            self.memory.tie(schema_id, form)
            if known is None:
                msg = f"schema {schema_id} is of {found!r}, but {_name(expected)!r} belongs here"
                raise WrongSchema(msg)
            schema, check, ours = known
            written = _WriterSchema(schema, check, self.code.reader(expected) if ours else None)
        except NOT_A_SCHEMA as error:
            msg = f"the registry's schema {schema_id} is no Avro schema: {error}"
            raise WrongSchema(msg) from error
        self._written[prefix, expected] = written
        return written


def _name(expected: type) -> str:
    return f"{NAMESPACE}{expected.__name__}"


@lru_cache(maxsize=SCHEMAS)
def _read_schema(
    text: str, expected: type
) -> tuple[object, str, tuple[Schema, avro_code.Check, bool] | None]:
    """Return a schema's record type and canonical form; for an expected type also its check, and
    whether it is our own schema.

    Cached, because the check is generated code. Raises one of NOT_A_SCHEMA.
    """
    parsed = fastavro.parse_schema(json.loads(text))
    # A schema need not be a record: it may be a bare type or a union, as text or list.
    found = parsed.get("name") if isinstance(parsed, dict) else parsed
    # Registries write names differently; the canonical form determines the bytes.
    form = to_parsing_canonical_form(parsed) if isinstance(parsed, dict) else str(parsed)
    if found != _name(expected):
        return found, form, None
    ours = form == canonical(expected)
    schema = schema_of(expected) if ours else cast(Schema, parsed)
    return found, form, (schema, avro_code.Readers(None).of(schema), ours)


def _resolved(value: bytes, written: _WriterSchema, expected: type) -> Any:
    """Read a message that was written with a schema other than ours."""
    _whole(value, expected, lambda value, begin: (None, written.check(value, begin)))
    schema, data = schema_of(expected), io.BytesIO(value)
    data.seek(PREFIX_BYTES)
    try:
        return message_of(fastavro_values.read(data, written.schema, schema), schema)
    except LengthsDisagree:
        raise
    except (*NOT_AVRO, *TOO_SHORT) as error:
        raise _unreadable(expected, error) from error
    except fastavro.read.SchemaResolutionError as error:
        msg = f"{expected.__name__} was written with a schema ours cannot read: {error}"
        raise UnknownSchema(msg) from error


def _whole(value: bytes, expected: type, read: avro_code.Read) -> Any:
    """Read the value after the prefix; it must end at the last byte."""
    try:
        message, end = read(value, PREFIX_BYTES)
    except LengthsDisagree:
        raise
    except TOO_SHORT as error:
        msg = f"{expected.__name__} is truncated: its data should go on after byte {len(value)}"
        raise BadBytes(msg) from error
    except NOT_AVRO as error:
        raise _unreadable(expected, error) from error
    if end != len(value):
        msg = f"{expected.__name__} ends at byte {end} of {len(value)}"
        raise BadBytes(msg)
    return message


def _unreadable(expected: type, error: Exception) -> BadBytes:
    return BadBytes(f"{expected.__name__} cannot be read: {type(error).__name__}: {error}")


class LocalRegistry:
    """A registry in this process, for the in-memory log and for tests."""

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
