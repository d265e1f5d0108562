"""The code that reads, writes and constructs messages: compiled if it was built, otherwise plain.

A test ensures that both do the same. If compiled code fails, plain code decides on the error.
"""

from collections.abc import Callable
from hashlib import sha256
from importlib import import_module
from importlib.resources import files
from typing import Any, NamedTuple, ParamSpec, TypeVar, cast

from rollcall.schemas import messages
from rollcall.schemas.avro_code import Read, Readers, Write, Writers
from rollcall.schemas.avro_schemas import NAMESPACE, cache, class_of, schema_of

COMPILED = "avro_compiled"
"""The extension module in this package; `rollcall.schemas.compile_codec` builds it."""
SOURCES = ("avro_code.py", "avro_cython.py", "avro_primitives.pyx")
"""The sources that it is generated from, besides the schemas."""

P = ParamSpec("P")
M = TypeVar("M")

_READERS, _WRITERS = Readers(class_of), Writers(class_of)


class MessageCode(NamedTuple):
    """Functions that read, write and construct each type of message."""

    form: str
    """"compiled" or "plain"."""
    reader: Callable[[type], Read]
    writer: Callable[[type], Write]
    maker: Callable[[type], Callable[..., Any]]


@cache
def _plain_reader(record: type) -> Read:
    read: Read = _READERS.of(schema_of(record))
    return read


@cache
def _plain_writer(record: type) -> Write:
    return _WRITERS.of(schema_of(record))


PLAIN = MessageCode("plain", _plain_reader, _plain_writer, messages.plain_maker)


@cache
def writers_around(record: type, name: str) -> tuple[Write, Write]:
    """Return writers of the fields before a field and after it: Avro concatenates fields."""
    fields = schema_of(record)["fields"]
    at = [field["name"] for field in fields].index(name)
    return _WRITERS.part(fields[:at]), _WRITERS.part(fields[at + 1 :])


@cache
def message_code() -> MessageCode:
    """Return the compiled code if it was built from the present sources, otherwise plain code."""
    try:
        compiled = import_module(f"rollcall.schemas.{COMPILED}")
    except ImportError:
        return PLAIN
    if made_from() != compiled.MADE_FROM:
        return PLAIN
    readers, writers, makers = compiled.READERS, compiled.WRITERS, compiled.MAKERS
    return MessageCode(
        "compiled",
        readers.__getitem__,
        writers.__getitem__,
        lambda record: makers.get(record) or messages.plain_maker(record),
    )


def maker(record: Callable[P, M]) -> Callable[P, M]:
    """Return a faster constructor of a frozen dataclass, for places that make thousands.

    It takes a tenth of the time for a record with compiled code, otherwise a third.
    """
    return message_code().maker(cast(type, record))


def made_from() -> str:
    """Return a digest of all sources of the compiled code."""
    here = files("rollcall.schemas")
    schemas = sorted((here / "avro").iterdir(), key=lambda path: path.name)
    parts = [path.read_bytes() for path in (*schemas, *(here / name for name in SOURCES))]
    return sha256(b"\0".join(parts)).hexdigest()


def records() -> list[type]:
    """Return the classes of all records that have a schema."""
    names = sorted(path.name for path in (files("rollcall.schemas") / "avro").iterdir())
    return [class_of(name.removesuffix(".avsc")) for name in names if name.startswith(NAMESPACE)]
