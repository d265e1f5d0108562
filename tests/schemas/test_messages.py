"""The .avsc is the contract, and the dataclass matches it; messages are read back unchanged."""

import dataclasses
import inspect
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollcall.schemas import messages
from rollcall.schemas.avro_schemas import NAMESPACE
from rollcall.schemas.errors import LengthsDisagree
from rollcall.schemas.message_code import PLAIN, MessageCode, message_code
from rollcall.schemas.packed import ids_of, logprobs_of, mask_of, pack_ids, pack_logprobs
from tests.support.avro_messages import (
    FEW,
    RECORDS,
    WIDTHS,
    WRITTEN,
    any_message,
    codec_for,
    encoded,
    example,
    is_of,
    of_each_kind,
    record_named,
)

EACH_RECORD = pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.__name__)
DATACLASSES = {
    name
    for name, of in inspect.getmembers(messages, inspect.isclass)
    if of.__module__ == "rollcall.schemas.messages"
}


def fields_of(record: type) -> list[dict[str, Any]]:
    fields: list[dict[str, Any]] = WRITTEN[record.__name__]["fields"]
    return fields


def read_default(avro: Any, default: Any) -> Any:
    """A default as the message has it, from how JSON has it."""
    kind, of = of_each_kind(avro)
    if kind == "optional":
        assert default is None, "only null, the first branch, can be the default of a union"
        return None
    if kind == "record":
        types = {
            field["name"]: field["type"] for field in WRITTEN[of.removeprefix(NAMESPACE)]["fields"]
        }
        assert set(default) == set(types), "a default must spell every field out: readers need it"
        return record_named(of)(
            **{name: read_default(types[name], default[name]) for name in types}
        )
    if kind == "array":
        return tuple(read_default(of, item) for item in default)
    if kind in ("bytes", "packed"):
        return default.encode("latin-1")
    return default


def default_of(field: dataclasses.Field[Any]) -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default


def test_every_record_has_a_dataclass_and_vice_versa() -> None:
    assert set(WRITTEN) == DATACLASSES


@EACH_RECORD
def test_a_record_and_its_dataclass_have_the_same_fields_in_order(record: type) -> None:
    fields = dataclasses.fields(record)

    assert [field["name"] for field in fields_of(record)] == [field.name for field in fields]


@EACH_RECORD
def test_a_record_and_its_dataclass_have_the_same_defaults(record: type) -> None:
    written = {
        f["name"]: read_default(f["type"], f["default"])
        for f in fields_of(record)
        if "default" in f
    }

    had = {field.name: default_of(field) for field in dataclasses.fields(record)}

    assert {n: d for n, d in had.items() if d is not dataclasses.MISSING} == written
    assert all(type(had[name]) is type(default) for name, default in written.items())


@EACH_RECORD
def test_a_record_is_documented_with_its_dataclass_docstring(record: type) -> None:
    written = WRITTEN[record.__name__]

    assert (written["type"], written["name"], written["namespace"]) == (
        "record",
        record.__name__,
        "rollcall",
    )
    assert written["doc"] == inspect.getdoc(record)


@EACH_RECORD
def test_fields_with_arrays_of_numbers_are_packed(record: type) -> None:
    for field in fields_of(record):
        kind, of = of_each_kind(field["type"])
        avro = of if kind == "optional" else field["type"]
        numbers = of_each_kind(avro) in [("array", "int"), ("array", "float"), ("array", "double")]

        assert not numbers, f"{field['name']} belongs into packed bytes"
        if isinstance(avro, dict) and avro["type"] == "bytes":
            assert avro["packed"] in WIDTHS


@EACH_RECORD
def test_packed_fields_are_named_by_their_content(record: type) -> None:
    packed = {
        "int32le": ("_ids", "versions", "partitions", "attempts"),
        "int64le": ("offsets",),
        "digest16": ("_ids",),
        "float32le": ("logprobs", "scores"),
        "uint8": ("mask", "_index"),
    }

    for field in fields_of(record):
        avro = field["type"][1] if isinstance(field["type"], list) else field["type"]
        if isinstance(avro, dict) and "packed" in avro:
            assert field["name"].endswith(packed[avro["packed"]])


@EACH_RECORD
def test_every_enum_has_a_default_symbol_for_older_readers(record: type) -> None:
    enums = [f["type"] for f in fields_of(record) if of_each_kind(f["type"])[0] == "enum"]

    for enum in enums:
        assert enum["default"] == enum["symbols"][0]
        assert enum["default"] in ("unknown", "other", "missing")


def test_event_bodies_are_in_the_same_order_in_schema_and_dataclass() -> None:
    body = next(f for f in WRITTEN["Event"]["fields"] if f["name"] == "body")

    assert body["type"] == [f"rollcall.{of.__name__}" for of in messages.Body.__args__]


@EACH_RECORD
def test_a_message_is_frozen_and_slotted(record: type) -> None:
    message = example(record)
    name = dataclasses.fields(record)[0].name

    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(message, name, getattr(message, name))
    assert not hasattr(message, "__dict__")


@EACH_RECORD
@given(data=st.data())
@FEW
def test_a_written_message_is_read_back_unchanged(record: type, data: st.DataObject) -> None:
    message = data.draw(any_message(record))
    codec = codec_for(record)

    value = codec.encode("a.topic", message)
    read = codec.decode(value, record)

    assert read == message
    assert is_of(read, f"rollcall.{record.__name__}")
    assert codec.encode("a.topic", read) == value


def test_the_bits_of_a_nan_are_preserved() -> None:
    nan = example(messages.StepTaken, reward=float("nan"))

    read = codec_for(messages.StepTaken).decode(encoded(nan), messages.StepTaken)

    assert read.reward != read.reward
    assert encoded(read) == encoded(nan)


@pytest.mark.parametrize(
    ("record", "wrong"),
    [
        (messages.ModelCall, {"prefix_ids": bytes(8), "prefix_length": 1}),
        (messages.ModelCall, {"prefix_ids": bytes(7), "prefix_length": 2}),
        (messages.ModelCall, {"prefix_ids": b"", "prefix_length": 1}),
        (messages.ModelAnswered, {"token_ids": bytes(4)}),
        (messages.ModelAnswered, {"logprobs": b""}),
        (messages.ModelAnswered, {"versions": bytes(12)}),
        (messages.ModelAnswered, {"added_ids": bytes(3)}),
        (messages.ModelAnswered, dict.fromkeys(("token_ids", "logprobs", "versions"), bytes(6))),
        (messages.Sequence, {"token_ids": bytes(4)}),
        (messages.Sequence, {"loss_mask": bytes(3)}),
        (messages.Sequence, {"behaviour_logprobs": bytes(9)}),
        (messages.Sequence, {"versions": b""}),
        (messages.Sequence, {"policy_index": bytes(1)}),
        (messages.Sequence, {"old_logprobs": bytes(4)}),
        (messages.PolicyVersion, {"canary_ids": bytes(8), "canary_logprobs": bytes(8)}),
        (messages.PolicyVersion, {"canary_ids": b"", "canary_logprobs": b""}),
        (messages.PolicyVersion, {"canary_ids": bytes(5), "canary_logprobs": bytes(1)}),
    ],
    ids=lambda of: of.__name__ if isinstance(of, type) else "+".join(of),
)
def test_a_message_with_disagreeing_packed_lengths_cannot_be_made(
    record: type, wrong: dict[str, Any]
) -> None:
    whole = example(record)

    with pytest.raises(LengthsDisagree, match=record.__name__) as raised:
        dataclasses.replace(whole, **wrong)

    sizes = [f"{name} {len(of)} bytes" for name, of in wrong.items() if isinstance(of, bytes)]
    assert any(size in str(raised.value) for size in sizes)


@EACH_RECORD
def test_the_length_of_every_packed_array_is_checked(record: type) -> None:
    message = example(record)
    packed = []
    for field in fields_of(record):
        kind, of = of_each_kind(field["type"])
        if kind == "packed" or (kind == "optional" and of_each_kind(of)[0] == "packed"):
            packed.append(field["name"])

    for name in packed:
        with pytest.raises(LengthsDisagree, match=name):
            dataclasses.replace(message, **{name: getattr(message, name) + b"\0"})


@given(st.lists(st.integers(-(2**31), 2**31 - 1)))
@FEW
def test_packing_ids_then_unpacking_is_identity(ids: list[int]) -> None:
    assert ids_of(pack_ids(ids)).tolist() == ids


@given(st.lists(st.floats(width=32, allow_nan=False)))
@FEW
def test_packing_logprobs_then_unpacking_is_identity(logprobs: list[float]) -> None:
    assert logprobs_of(pack_logprobs(logprobs)).tolist() == logprobs


def test_packed_arrays_are_little_endian_and_their_views_are_read_only() -> None:
    assert pack_ids([1, -2]) == b"\1\0\0\0\xfe\xff\xff\xff"
    assert pack_logprobs([-1.5]) == b"\0\0\xc0\xbf"
    assert mask_of(b"\0\1").tolist() == [0, 1]
    assert not ids_of(pack_ids([1])).flags.writeable


FORMS = tuple(dict.fromkeys((PLAIN, message_code())))
EACH_FORM = pytest.mark.parametrize("code", FORMS, ids=lambda code: code.form)


@EACH_FORM
@EACH_RECORD
def test_a_generated_maker_equals_the_class_constructor(record: type, code: MessageCode) -> None:
    given = example(record)
    values = [getattr(given, field.name) for field in dataclasses.fields(record)]
    needed = [
        value
        for value, field in zip(values, dataclasses.fields(record), strict=True)
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    ]
    named = {
        field.name: value for field, value in zip(dataclasses.fields(record), values, strict=True)
    }
    make = code.maker(record)

    made = make(*values)

    assert type(made) is record
    assert made == given == make(**named)
    assert make(*needed) == record(*needed)
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(made, dataclasses.fields(record)[0].name, None)


@EACH_FORM
def test_a_generated_maker_makes_the_checks_of_the_class(code: MessageCode) -> None:
    make = code.maker(messages.ModelAnswered)
    answer = example(messages.ModelAnswered)
    wrong = {**dataclasses.asdict(answer), "token_ids": b"12345"}

    with pytest.raises(LengthsDisagree):
        make(**wrong)
    with pytest.raises(TypeError, match="argument"):
        make()
    with pytest.raises(TypeError, match="argument"):
        make(**dataclasses.asdict(answer), unknown=1)


@dataclasses.dataclass(frozen=True, slots=True)
class Unknown:
    """A frozen dataclass of which there is no schema."""

    text: str
    items: list[int] = dataclasses.field(default_factory=list)


@EACH_FORM
def test_a_class_that_is_not_a_record_has_a_maker_too(code: MessageCode) -> None:
    make = code.maker(Unknown)
    one, other = make("a"), make("a")

    assert one == other == Unknown("a")
    assert one.items is not other.items
