"""Messages made from the Avro files themselves, so that tomorrow's records are covered too."""

import dataclasses
import json
import random
from collections.abc import Callable
from functools import cache
from importlib.resources import files
from typing import Any, get_args

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from rollcall.schemas import messages
from rollcall.schemas.avro_schemas import NAMESPACE
from rollcall.schemas.claims import checked, claim_of
from rollcall.schemas.codec import PREFIX, Codec, LocalRegistry
from rollcall.schemas.errors import ObjectLost, StoreUnavailable, TopicsDiffer, UnknownSchema
from rollcall.schemas.message_code import MessageCode
from rollcall.schemas.messages import Claim
from rollcall.schemas.topics import manifest
from tests.support.tiers import examples

Avro = Any
FEW = settings(
    max_examples=examples(25), suppress_health_check=[HealthCheck.too_slow], database=None
)
"""A busy machine is slow now and then, and these laws are cheap to break."""
WRITTEN: dict[str, dict[str, Any]] = {
    path.name.removeprefix(NAMESPACE).removesuffix(".avsc"): json.loads(path.read_text())
    for path in sorted((files("rollcall.schemas") / "avro").iterdir(), key=lambda path: path.name)
}
"""Every .avsc as it lies there, by the name of its file."""
RECORDS: tuple[type, ...] = tuple(getattr(messages, name) for name in WRITTEN)
ON_TOPICS: tuple[type, ...] = tuple(
    dict.fromkeys(spec.record for spec in manifest() if spec.record is not None)
)
BODIES: tuple[type, ...] = get_args(messages.Body)
CLAIM = f"{NAMESPACE}Claim"
WIDTHS = {"int32le": 4, "int64le": 8, "float32le": 4, "uint8": 1, "digest16": 16}
"""Bytes per element of each kind of packed array."""


def _fit_call(values: dict[str, Any], _: int) -> None:
    if values["prefix_ids"] is not None:
        values["prefix_length"] = len(values["prefix_ids"]) // 4


def _fit_answer(values: dict[str, Any], tokens: int) -> None:
    values["added_ids"] = bytes(4 * (3 - tokens)) if tokens < 3 else b""


def _fit_version(values: dict[str, Any], _: int) -> None:
    values["canary_ids"] += bytes(4)


def _fit_refs(values: dict[str, Any], _: int) -> None:
    values["names"] = ()


FITS: dict[str, Callable[[dict[str, Any], int], None]] = {
    "ModelCall": _fit_call,
    "ModelAnswered": _fit_answer,
    "PolicyVersion": _fit_version,
    "TrajectoryRefs": _fit_refs,
}
"""How lengths hang together where they are not simply all the same."""


def record_named(name: str) -> type:
    found = getattr(messages, name.removeprefix(NAMESPACE))
    assert isinstance(found, type)
    return found


def of_each_kind(avro: Avro) -> tuple[str, Avro]:
    """(kind, what it is of): kind is packed, bytes, record, optional, choice, array, map, ..."""
    if isinstance(avro, list):
        assert len(avro) == 2 or "null" not in avro, f"the codec reads no union like {avro}"
        return ("optional", avro[1]) if avro[0] == "null" else ("choice", avro)
    if isinstance(avro, str):
        return ("record", avro) if avro.startswith(NAMESPACE) else (avro, None)
    if "packed" in avro:
        return "packed", WIDTHS[avro["packed"]]
    of = {"array": "items", "map": "values", "enum": "symbols"}.get(avro["type"])
    return avro["type"], avro[of] if of else None


@cache
def any_message(record: type) -> st.SearchStrategy[Any]:
    """Any message of a type; its packed arrays are of up to three tokens."""

    @st.composite
    def made(draw: st.DrawFn) -> Any:
        tokens = draw(st.integers(0, 3))
        fields = WRITTEN[record.__name__]["fields"]
        values = {field["name"]: draw(_any_value(field["type"], tokens)) for field in fields}
        FITS.get(record.__name__, lambda *_: None)(values, tokens)
        return record(**values)

    return made()


def _any_value(avro: Avro, tokens: int) -> st.SearchStrategy[Any]:
    kind, of = of_each_kind(avro)
    if kind == "packed":
        return st.binary(min_size=of * tokens, max_size=of * tokens)
    if kind == "optional":
        # A message with a claim is read from where the whole one lies.
        return st.none() if of == CLAIM else st.none() | _any_value(of, tokens)
    if kind == "choice":
        return st.one_of([_any_value(branch, tokens) for branch in of])
    if kind == "record":
        return any_message(record_named(of))
    if kind == "array":
        return st.lists(_any_value(of, tokens), max_size=2).map(tuple)
    if kind == "map":
        return st.dictionaries(st.text(max_size=3), _any_value(of, tokens), max_size=3)
    if kind == "enum":
        return st.sampled_from(of)
    return {
        "string": st.text(max_size=4),
        "bytes": st.binary(max_size=4),
        "boolean": st.booleans(),
        "int": st.integers(-(2**31), 2**31 - 1),
        "long": st.integers(-(2**63), 2**63 - 1),
        "double": st.floats(allow_nan=False),
    }[kind]


def example(record: type, **given: Any) -> Any:
    """The one message that golden bytes are of: nothing null, nothing empty, always the same."""
    fields = WRITTEN[record.__name__]["fields"]
    values = {field["name"]: _example(field["name"], field["type"]) for field in fields}
    FITS.get(record.__name__, lambda *_: None)(values, 2)
    return record(**{**values, **given})


def _example(name: str, avro: Avro) -> Any:
    kind, of = of_each_kind(avro)
    if kind == "packed":
        return bytes(range(2 * of))
    if kind in ("optional", "choice"):
        return _example(name, of if kind == "optional" else of[0])
    if kind == "record":
        return example(record_named(of))
    if kind == "array":
        return (_example(name, of), _example(f"{name}_2", of))
    if kind == "map":
        return {f"{name}_2": _example(f"{name}_2", of), name: _example(name, of)}
    if kind == "enum":
        return of[-1]
    return {
        "string": f"{name} ✓",
        "bytes": name.encode(),
        "boolean": True,
        "int": -len(name),
        "long": 2**40 + len(name),
        "double": len(name) / 7,
    }[kind]


def one_of_each_kind() -> dict[str, Any]:
    """An example for each record that a topic holds, and of the journal one for each event."""
    found = {r.__name__: example(r) for r in ON_TOPICS if r is not messages.Event}
    return found | {
        f"Event-{body.__name__}": example(messages.Event, body=example(body)) for body in BODIES
    }


def plain(value: Any) -> Any:
    """A message as JSON knows it, without a schema: bytes as hex, records with their name."""
    if dataclasses.is_dataclass(value):
        of = {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
        return {"record": type(value).__name__} | of
    if isinstance(value, bytes):
        return f"0x{value.hex()}"
    if isinstance(value, tuple):
        return [plain(item) for item in value]
    return value


def datum(value: Any) -> Any:
    """A message as fastavro writes it under any schema that has records of these names."""
    if dataclasses.is_dataclass(value):
        of = {field.name: datum(getattr(value, field.name)) for field in dataclasses.fields(value)}
        return {"-type": f"{NAMESPACE}{type(value).__name__}"} | of
    return [datum(item) for item in value] if isinstance(value, tuple) else value


def inlined(record: type, written: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """The schema of a record with each record that it names in place where it is first named."""
    seen: set[str] = set()

    def place(avro: Avro) -> Avro:
        if isinstance(avro, list):
            return [place(branch) for branch in avro]
        if isinstance(avro, dict):
            inside = {of: place(avro[of]) for of in ("items", "values") if of in avro}
            if "fields" in avro:
                fields = [{**field, "type": place(field["type"])} for field in avro["fields"]]
                inside["fields"] = fields
            return {**avro, **inside}
        if not avro.startswith(NAMESPACE) or avro in seen:
            return avro
        seen.add(avro)
        return place(written[avro.removeprefix(NAMESPACE)])

    placed = place(f"{NAMESPACE}{record.__name__}")
    assert isinstance(placed, dict)
    return placed


def records_in(record: type) -> set[str]:
    """The names of all records that a record is made of, its own among them."""
    found: set[str] = set()

    def walk(avro: Avro) -> None:
        kind, of = of_each_kind(avro)
        if kind == "choice":
            for branch in of:
                walk(branch)
        elif kind == "record":
            name = of.removeprefix(NAMESPACE)
            found.add(name)
            for field in WRITTEN[name]["fields"]:
                walk(field["type"])
        elif kind in ("optional", "array", "map"):
            walk(of)

    walk(f"{NAMESPACE}{record.__name__}")
    return found


class Holding:
    """A registry that holds the given schemas, by id, and has no writer id for any topic."""

    def __init__(self, texts: dict[int, str]) -> None:
        self.texts = texts

    def writer_id(self, topic: str, schema: str) -> int:
        del schema
        msg = f"{topic} is only read here"
        raise TopicsDiffer(msg)

    def schema_of(self, schema_id: int) -> str:
        if schema_id not in self.texts:
            msg = f"no schema has id {schema_id}"
            raise UnknownSchema(msg)
        return self.texts[schema_id]


class Shelf:
    """A store of objects in memory, which can be away."""

    def __init__(self, above_bytes: int = 1_000_000) -> None:
        self.above_bytes = above_bytes
        self.held: dict[str, bytes] = {}
        self.away = False
        self.full = False
        """Whether it takes nothing more."""

    def put(self, value: bytes) -> Claim:
        self._answer()
        if self.full:
            msg = "the shelf is full"
            raise StoreUnavailable(msg)
        claim = claim_of(value)
        self.held[claim.sha256] = value
        return claim

    def get(self, claim: Claim) -> bytes:
        self._answer()
        if claim.sha256 not in self.held:
            msg = f"object {claim.uri} is not here"
            raise ObjectLost(msg)
        return checked(self.held[claim.sha256], claim)

    def _answer(self) -> None:
        if self.away:
            msg = "the shelf is away"
            raise StoreUnavailable(msg)


def damaged(value: bytes, rng: random.Random) -> bytes:
    """The value after one or two of what happens to bytes, and of what fastavro lets pass."""
    for _ in range(rng.choice((1, 1, 2))):
        at = rng.randrange(PREFIX.size, len(value) + 1)
        to = min(len(value), at + rng.randrange(1, 4))
        piece = value[at:to]
        put = rng.choice(
            (
                bytes(b ^ 1 << rng.randrange(8) for b in piece),
                rng.randbytes(len(piece)),
                b"",
                piece * 2,
                rng.randbytes(1) + piece,
                bytes(b | 128 for b in piece[:1]) + b"\0" + piece[1:],
                bytes(b + 1 & 255 for b in piece),
                rng.choice((b"\0", b"\1", b"\2", b"\x7f", b"\x80\0", b"\xff" * 9 + b"\1")),
            )
        )
        value = value[:at] + put + value[to:]
    return value


def codec_for(record: type, code: MessageCode | None = None) -> Codec:
    """A codec whose registry holds one schema, that of the record, under id 1."""
    codec = Codec(LocalRegistry(), objects=Shelf(), code=code)
    codec.prepare("a.topic", record)
    return codec


def encoded(message: Any) -> bytes:
    """The value of a message under schema id 1."""
    return codec_for(type(message)).encode("a.topic", message)


TYPES = {"string": str, "bytes": bytes, "packed": bytes, "boolean": bool, "double": float}
TYPES |= {"int": int, "long": int, "enum": str}


def is_of(value: Any, avro: Avro) -> bool:
    """Whether a value has, all the way down, the Python types that its schema stands for."""
    kind, of = of_each_kind(avro)
    if kind == "optional":
        return value is None or is_of(value, of)
    if kind == "choice":
        return any(is_of(value, branch) for branch in of)
    if kind == "record":
        fields = WRITTEN[of.removeprefix(NAMESPACE)]["fields"]
        return type(value) is record_named(of) and all(
            is_of(getattr(value, field["name"]), field["type"]) for field in fields
        )
    if kind == "array":
        return type(value) is tuple and all(is_of(item, of) for item in value)
    if kind == "map":
        return type(value) is dict and all(is_of(item, of) for item in value.values())
    return type(value) is TYPES[kind] and (kind != "enum" or value in of)
