"""The schemas of our records, read from the `.avsc` files, and their classes."""

import json
from collections.abc import Callable
from functools import cache as untyped_cache
from importlib.resources import files
from typing import Any, TypeVar, cast

from fastavro.schema import load_schema, to_parsing_canonical_form

from rollcall.schemas import messages

F = TypeVar("F", bound=Callable[..., Any])
Avro = Any
"""Any type of a schema: a name, a list of branches, or a dictionary."""
Schema = dict[str, Any]
"""The schema of a record."""

NAMESPACE = "rollcall."


def cache(function: F) -> F:
    """Apply `functools.cache` and keep the signature for mypy."""
    return cast(F, untyped_cache(function))


def class_of(name: str) -> type:
    """Return the class of a record by its full name; raise AttributeError if there is none."""
    return cast(type, getattr(messages, name.removeprefix(NAMESPACE)))


@cache
def schema_of(record: type) -> Schema:
    """Return the parsed, self-contained schema of a message type."""
    path = files("rollcall.schemas") / "avro" / f"{NAMESPACE}{record.__name__}.avsc"
    return cast(Schema, load_schema(str(path)))


@cache
def schema_text(record: type) -> str:
    """Return the schema to register, with all named types inlined, as compact JSON.

    Keys are sorted, since their order in fastavro differs between processes.
    """
    bare = _bare(schema_of(record))
    return json.dumps(bare, separators=(",", ":"), ensure_ascii=False, sort_keys=True)


@cache
def canonical(record: type) -> str:
    """Return the canonical form, which determines a record's bytes; registries keep it."""
    return str(to_parsing_canonical_form(schema_of(record)))


def branch_name(avro: Avro) -> str:
    """Return fastavro's name of a branch of a union: a record's name, else the type's kind."""
    if isinstance(avro, dict):
        return str(avro["name"] if "name" in avro else avro["type"])
    return str(avro)


def _bare(schema: Avro) -> Avro:
    if isinstance(schema, dict):
        return {k: _bare(v) for k, v in schema.items() if not k.startswith("__")}
    return [_bare(item) for item in schema] if isinstance(schema, list) else schema
