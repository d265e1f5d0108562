"""Messages to bytes and back: Confluent prefix (magic byte, 4-byte schema id) and Avro binary.

What cannot be read raises a WireError and nothing else; the loop buries it and goes on. A registry
that is away raises Unavailable, which is never taken for bad bytes. Whatever is read would be
written as the same bytes (`schemas.avro_reader`): a value that was damaged is refused, or it says
what its bytes say.
"""

import copy
import dataclasses
import io
import json
import struct
import time
from collections.abc import Callable, Mapping
from functools import cache as untyped_cache
from importlib.resources import files
from operator import attrgetter, itemgetter
from typing import Any, NamedTuple, Protocol, TypeVar, cast

import fastavro
from fastavro.repository import SchemaRepositoryError
from fastavro.schema import load_schema, to_parsing_canonical_form

from schemas import avro_reader, messages
from schemas.availability import Patience
from schemas.claims import Objects, OnlyRead, claim_of, claimed, lightened
from schemas.errors import (
    BadBytes,
    BadMagic,
    LengthsDisagree,
    Unavailable,
    UnknownSchema,
    WireError,
    WrongSchema,
)
from schemas.messages import Claim

M = TypeVar("M")
F = TypeVar("F", bound=Callable[..., Any])
Schema = dict[str, Any]
Build = Callable[[Any], Any]

NAMED = True
"""Have fastavro name the branch where a union's value is a record: it comes as (name, dict)."""
UNLESS_SINGLE = True
"""But not that of a record or null: to ask costs time, and not to ask fails where schemas differ
(fastavro takes a name for a schema)."""
LIGHTS = 10_000
"""Light values remembered as such."""
PREFIX = struct.Struct(">BI")
NAMESPACE = "rollcall."
TOO_SHORT = (EOFError, IndexError, struct.error)
# What else is raised on bytes that are no record of the schema, found by fuzzing.
NOT_AVRO = (
    KeyError,
    MemoryError,
    OverflowError,
    RecursionError,
    StopIteration,
    TypeError,
    ValueError,
)
NOT_WRITABLE = (KeyError, TypeError, ValueError, AttributeError, struct.error, OverflowError)
NOT_A_SCHEMA = (
    AttributeError,
    KeyError,
    RecursionError,
    SyntaxError,
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


def _named(name: str) -> type | None:
    return cast("type | None", getattr(messages, name.removeprefix(NAMESPACE), None))


def _keep(value: Any) -> Any:
    return value


def _bytes(value: Any) -> Any:
    # fastavro yields str for the JSON default of a bytes field that the writer did not know.
    return value.encode("latin-1") if isinstance(value, str) else value


def _in_order(values: Mapping[str, Any]) -> dict[str, Any]:
    # Equal maps are equal bytes, however they were filled.
    return dict(sorted(values.items()))


@cache
def _read_of(record: type) -> avro_reader.Read:
    """What reads bytes that were written with our own schema."""
    return avro_reader.reader(
        schema_of(record), lambda name: messages.maker(cast(Callable[..., Any], _named(name)))
    )


@cache
def _reader_of(record: type) -> Build:
    """Turn what fastavro read (a dict, which it may change) into the message."""
    fields = schema_of(record)["fields"]
    get, make = _all_of(itemgetter, fields), messages.maker(record)
    special = [
        (field["name"], build) for field in fields if (build := _field_reader(field)) is not _keep
    ]

    def build_message(read: dict[str, Any]) -> Any:
        for name, build in special:
            if (value := read[name]) is not None:
                read[name] = build(value)
        return make(*get(read))

    return build_message


def _field_reader(field: Mapping[str, Any]) -> Build:
    avro = field["type"]
    plain = avro["type"] if isinstance(avro, dict) else avro
    return _bytes if plain == "bytes" and "default" in field else _value_reader(avro)


def _value_reader(avro: Any) -> Build:
    """How one field's value, if it is not None, is read; `_keep` where it can stay as it is."""
    if isinstance(avro, list):
        return _union_reader(avro)
    if isinstance(avro, dict):
        if avro["type"] == "array":
            item = _value_reader(avro["items"])
            return tuple if item is _keep else lambda vs: tuple(map(item, vs))
        if avro["type"] == "record":
            return _lazy(_reader_of, avro["name"])
        return _keep
    return _lazy(_reader_of, avro) if avro.startswith(NAMESPACE) else _keep


def _union_reader(branches: list[Any]) -> Build:
    names = [_branch(avro) for avro in branches if avro != "null"]
    if not names[0].startswith(NAMESPACE):
        return _value_reader(branches[-1])
    readers = {name: _lazy(_reader_of, name) for name in names}
    if len(names) == 1:
        build = readers[names[0]]
        return lambda value: build(value[1] if isinstance(value, tuple) else value)
    return lambda named: readers[named[0]](named[1])


@cache
def _writer_of(record: type) -> Build:
    """Turn the message into what fastavro writes (a dict)."""
    return _fields_writer(schema_of(record)["fields"])


def _fields_writer(fields: list[Any]) -> Build:
    names = [field["name"] for field in fields]
    get = _all_of(attrgetter, fields)
    special = [
        (field["name"], build)
        for field in fields
        if (build := _value_writer(field["type"])) is not _keep
    ]

    def build_dict(message: Any) -> dict[str, Any]:
        values = dict(zip(names, get(message), strict=True))
        for name, build in special:
            if (value := values[name]) is not None:
                values[name] = build(value)
        return values

    return build_dict


def _all_of(getter: Callable[..., Callable[[Any], Any]], fields: list[Any]) -> Build:
    """Get the values of all fields as a tuple, in one call."""
    get = getter(*(field["name"] for field in fields))
    return get if len(fields) > 1 else lambda values: (get(values),)


@cache
def _around(record: type, name: str) -> list[tuple[Schema, Build]]:
    """What is written before a field and after it: Avro sets a record's fields end to end."""
    fields = schema_of(record)["fields"]
    at = [field["name"] for field in fields].index(name)
    bare = _bare(schema_of(record))
    return [
        (cast(Schema, fastavro.parse_schema({**bare, "fields": _bare(part)})), _part_writer(part))
        for part in (fields[:at], fields[at + 1 :])
    ]


def _part_writer(fields: list[Any]) -> Build:
    return _fields_writer(fields) if fields else lambda message: {}


@cache
def _picked(record: type, paths: tuple[str, ...]) -> Schema:
    """A reader's schema of nothing but these fields; what it does not name is skipped unread."""
    return cast(Schema, fastavro.parse_schema(_pick(schema_of(record), paths)))


def _pick(schema: Schema, paths: tuple[str, ...]) -> Schema:
    within: dict[str, list[str]] = {}
    for path in paths:
        name, _, rest = path.partition(".")
        within.setdefault(name, []).extend([rest] if rest else [])
    fields = []
    for field in schema["fields"]:
        if field["name"] in within:
            avro, rest_of = field["type"], tuple(within[field["name"]])
            inner = (
                _pick(schema_of(cast(type, _named(_branch(avro)))), rest_of) if rest_of else None
            )
            fields.append({"name": field["name"], "type": inner or _bare(avro)})
    return {"type": "record", "name": schema["name"], "fields": fields}


def _at(read: Any, path: str) -> Any:
    for name in path.split("."):
        read = read[name]
    return read


def _value_writer(avro: Any) -> Build:
    """How one field's value, if it is not None, is written."""
    if isinstance(avro, list):
        return _union_writer(avro)
    if isinstance(avro, dict):
        if avro["type"] == "array":
            item = _value_writer(avro["items"])
            # In a union fastavro takes a tuple of two for (branch, value), so it gets a list.
            return list if item is _keep else lambda vs: [item(v) for v in vs]
        if avro["type"] == "map":
            return _in_order
        if avro["type"] == "record":
            return _lazy(_writer_of, avro["name"])
        return _keep
    return _lazy(_writer_of, avro) if avro.startswith(NAMESPACE) else _keep


def _union_writer(branches: list[Any]) -> Build:
    # Where the branch is named, fastavro need not try them one by one.
    if branches[0] == "null":
        branch, inner = _branch(branches[1]), _value_writer(branches[1])
        return lambda v: (branch, inner(v))
    writers = {_named(name): (name, _lazy(_writer_of, name)) for name in map(_branch, branches)}

    def build_body(body: Any) -> tuple[str, Any]:
        name, build = writers[type(body)]
        return name, build(body)

    return build_body


def _branch(avro: Any) -> str:
    """What fastavro calls one type of a union: records by their name, others by their kind."""
    if isinstance(avro, dict):
        return str(avro["name"] if "name" in avro else avro["type"])
    return str(avro)


def _lazy(make: Callable[[type], Build], name: str) -> Build:
    return make(cast(type, _named(name)))


def _write(out: io.BytesIO, record: type, schema: Schema, build: Build, message: Any) -> None:
    try:
        fastavro.schemaless_writer(out, schema, build(message))
    except (*NOT_WRITABLE, SchemaRepositoryError) as error:
        msg = f"{record.__name__} cannot be written: {error}"
        raise WireError(msg) from error


class _Written(NamedTuple):
    """How values of a record were written, under one schema id."""

    schema: Schema
    check: avro_reader.Check
    read: avro_reader.Read | None
    """Where the schema is our own."""


class Codec:
    """Encodes for a topic, decodes for a message type; one per process."""

    def __init__(
        self,
        registry: Registry,
        *,
        objects: Objects | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Without a store of objects every value is whole, whatever its size."""
        self.registry = registry
        self.objects = objects
        self.clock = clock
        self._ask_registry = Patience(clock).ask
        self._ask_put, self._ask_get = Patience(clock).ask, Patience(clock).ask
        self._lights: dict[bytes, None] = {}
        """Values that were read as light ones, the last of them."""
        self._prefixes: dict[str, bytes] = {}
        self._written: dict[tuple[int, type], _Written] = {}

    def encode(self, topic: str, message: Any) -> bytes:
        """The value of one record: prefix and Avro bytes.

        One that is too heavy for the log is put into the store of objects, and a light one comes
        back. Raises Unavailable where registry or store is away.
        """
        return self._light(topic, message, self._encoded(topic, message))

    def _encoded(self, topic: str, message: Any) -> bytes:
        record = type(message)
        out = self._begun(topic, record)
        _write(out, record, schema_of(record), _writer_of(record), message)
        return out.getvalue()

    def _light(self, topic: str, message: Any, value: bytes) -> bytes:
        """What is written to the log in place of a whole value: most often that itself."""
        objects = self.objects
        if objects is None or len(value) <= objects.above_bytes:
            return value
        if lightened(message, claim_of(b"")) is None:
            return value
        claim = self._ask_put(lambda: objects.put(value))
        return self._encoded(topic, lightened(message, claim))

    def writing_whole(self) -> "Codec":
        """A codec that reads the same and writes every value whole: for whoever compares."""
        same = copy.copy(self)
        same.objects = self.objects and OnlyRead(self.objects)
        return same

    def encode_around(self, topic: str, message: Any, field: str, value: bytes | None) -> bytes:
        """As `encode`; `value` is the record that one field of the message was read from.

        Its bytes are kept as they are where they were written with our own schema: for a
        trajectory that is eight times as fast as writing it again.
        """
        record, inner = type(message), type(getattr(message, field))
        known = value and self._written.get((PREFIX.unpack_from(value)[1], inner))
        if value is None or not known or known.read is None or value in self._lights:
            return self.encode(topic, message)
        before, after = _around(record, field)
        out = self._begun(topic, record)
        _write(out, record, *before, message)
        out.write(value[PREFIX.size :])
        _write(out, record, *after, message)
        return self._light(topic, message, out.getvalue())

    def _begun(self, topic: str, record: type) -> io.BytesIO:
        """A value that so far has its prefix."""
        if topic not in self._prefixes:
            self.prepare(topic, record)
        out = io.BytesIO()
        out.write(self._prefixes[topic])
        return out

    def prepare(self, topic: str, record: type) -> None:
        """Look the writer id of a topic up; raises TopicsDiffer and Unavailable."""
        schema_id = self._ask_registry(lambda: self.registry.writer_id(topic, schema_text(record)))
        self._prefixes[topic] = PREFIX.pack(0, schema_id)

    def decode(self, value: bytes | None, expected: type[M]) -> M:
        """Read a value as the expected message; raises WireError or Unavailable.

        A light one is read whole, from the store of objects.
        """
        message = self._decoded(value, expected)
        claim = claimed(message)
        return message if claim is None else self._fetched(cast(bytes, value), claim, expected)

    def _decoded(self, value: bytes | None, expected: type[M]) -> M:
        whole, written = self._writer(value, expected)
        if written.read is not None:
            return cast(M, _whole(whole, expected, written.read))
        return cast(M, self._resolved(whole, written, schema_of(expected), expected))

    def _fetched(self, light: bytes, claim: Claim, expected: type[M]) -> M:
        objects = self.objects
        if objects is None:
            msg = (
                f"a {expected.__name__} lies in a store of objects, and none is known here; set "
                "ROLLCALL_OBJECTS__URL"
            )
            raise Unavailable(msg)
        message = self._decoded(self._ask_get(lambda: objects.get(claim)), expected)
        if claimed(message) is not None:
            msg = f"object {claim.uri} holds a {expected.__name__} that claims another object"
            raise BadBytes(msg)
        if len(self._lights) >= LIGHTS:
            del self._lights[next(iter(self._lights))]
        self._lights[light] = None
        return message

    def pick(self, value: bytes | None, expected: type, *paths: str) -> tuple[Any, ...]:
        """Some fields of the expected message, such as "trajectory.attempt"; skips the others.

        For plain fields of records. Raises WireError or Unavailable.
        """
        whole, written = self._writer(value, expected)
        picked: tuple[Any, ...] = self._resolved(
            whole,
            written,
            _picked(expected, paths),
            expected,
            lambda read: tuple(_at(read, path) for path in paths),
        )
        return picked

    def _writer(self, value: bytes | None, expected: type) -> tuple[bytes, _Written]:
        """A value that is one, and how it was written."""
        if value is None:
            msg = f"a null value where a {expected.__name__} belongs; tombstones mean nothing here"
            raise BadBytes(msg)
        if len(value) < PREFIX.size or value[0] != 0:
            raise BadMagic(value[: PREFIX.size])
        schema_id = PREFIX.unpack_from(value)[1]
        known = self._written.get((schema_id, expected))
        return value, known or self._learn(schema_id, expected)

    def _learn(self, schema_id: int, expected: type) -> _Written:
        text = self._ask_registry(lambda: self.registry.schema_of(schema_id))
        try:
            parsed = fastavro.parse_schema(json.loads(text))
            # A schema need not be a record: it may be a bare type or a union, as text or list.
            found = parsed.get("name") if isinstance(parsed, dict) else parsed
            wanted = f"{NAMESPACE}{expected.__name__}"
            if found != wanted:
                msg = f"schema {schema_id} is of {found!r}, but {wanted!r} belongs here"
                raise WrongSchema(msg)
            # Registries spell names their own way; what fixes the bytes is the canonical form.
            ours = to_parsing_canonical_form(parsed) == _canonical(expected)
            schema = schema_of(expected) if ours else cast(Schema, parsed)
            written = _Written(
                schema, avro_reader.checker(schema), _read_of(expected) if ours else None
            )
        except NOT_A_SCHEMA as error:
            msg = f"the registry's schema {schema_id} is no Avro schema: {error}"
            raise WrongSchema(msg) from error
        self._written[schema_id, expected] = written
        return written

    def _resolved(
        self,
        value: bytes,
        written: _Written,
        reader: Schema,
        expected: type,
        build: Build | None = None,
    ) -> Any:
        """Read with another schema than the value was written with."""
        _whole(value, expected, lambda value, begin: (None, written.check(value, begin)))
        data = io.BytesIO(value)
        data.seek(PREFIX.size)
        try:
            read = fastavro.schemaless_reader(data, written.schema, reader, NAMED, UNLESS_SINGLE)
            read = copy.deepcopy(read)  # defaults are the schema's own
            return (build or _reader_of(expected))(read)
        except LengthsDisagree:
            raise
        except (*NOT_AVRO, *TOO_SHORT) as error:
            raise _unreadable(expected, error) from error
        except fastavro.read.SchemaResolutionError as error:
            msg = f"{expected.__name__} was written with a schema ours cannot read: {error}"
            raise UnknownSchema(msg) from error


def _whole(value: bytes, expected: type, read: avro_reader.Read) -> Any:
    """What is read from behind the prefix up to the last byte, no less and no more."""
    try:
        message, end = read(value, PREFIX.size)
    except LengthsDisagree:
        raise
    except TOO_SHORT as error:
        msg = f"{expected.__name__} is cut short: it goes on behind byte {len(value)}"
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
