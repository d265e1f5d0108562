"""Unreadable bytes raise only a WireError; all others are read correctly."""

import copy
import dataclasses
import io
import json
import random
from typing import Any

import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollcall.schemas.avro_schemas import schema_of, schema_text
from rollcall.schemas.circuit_breaker import AGAIN_S
from rollcall.schemas.codec import PREFIX, Codec, LocalRegistry
from rollcall.schemas.errors import (
    BadBytes,
    BadMagic,
    LengthsDisagree,
    TopicsDiffer,
    Unavailable,
    UnknownSchema,
    WireError,
)
from rollcall.schemas.messages import (
    AttemptStarted,
    Control,
    EnvironmentStep,
    Event,
    ModelCall,
    PolicyVersion,
    RolloutRequest,
    ScoredTrajectory,
    TrainStep,
    Trajectory,
)
from rollcall.schemas.topics import Topics
from tests.schemas.release import GOLDEN, versions
from tests.support.avro_messages import (
    FEW,
    ON_TOPICS,
    RECORDS,
    WRITTEN,
    Holding,
    Shelf,
    any_message,
    codec_for,
    damaged,
    datum,
    encoded,
    example,
    inlined,
    is_of,
    of_each_kind,
    one_of_each_kind,
    plain,
    records_in,
)

EACH_TOPIC = pytest.mark.parametrize("record", ON_TOPICS, ids=lambda record: record.__name__)
GOLDEN_BYTES: dict[str, dict[str, Any]] = json.loads(GOLDEN.read_text())
A_OR_B = {"type": "enum", "name": "E", "symbols": ["a", "b"]}
CANCEL = Control("cancel", rollout_id="r", reason="no longer needed")

Written = dict[str, dict[str, Any]]


class Moody(LocalRegistry):
    """A registry that can be unavailable, and that counts requests."""

    away = False
    asked = 0

    def writer_id(self, topic: str, schema: str) -> int:
        self.asked += 1
        if self.away:
            msg = "the registry is away"
            raise Unavailable(msg)
        return super().writer_id(topic, schema)

    def schema_of(self, schema_id: int) -> str:
        self.asked += 1
        if self.away:
            msg = "the registry is away"
            raise Unavailable(msg)
        return super().schema_of(schema_id)


class Time:
    """A clock that the test moves."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def assert_read_or_refused(codec: Codec, value: bytes, record: type) -> None:
    """Decode; the outcome must be a whole message of that type or a WireError, and nothing else."""
    try:
        message = codec.decode(value, record)
    except WireError:
        return
    assert is_of(message, f"rollcall.{record.__name__}")


def written_under(schema: Any, what: Any) -> bytes:
    """The value of a message, or of its datum, under another schema of its record, with id 1."""
    out = io.BytesIO()
    out.write(PREFIX.pack(0, 1))
    fastavro.schemaless_writer(out, fastavro.parse_schema(copy.deepcopy(schema)), datum(what))
    return out.getvalue()


def reader_of(schema: Any) -> Codec:
    return Codec(Holding({1: json.dumps(schema)}), objects=Shelf())


def with_extras() -> Written:
    """All records as written by another release: with fields that ours must skip."""
    written = copy.deepcopy(WRITTEN)
    for name, record in written.items():
        record["fields"][:0] = [
            {"name": "x1", "type": {"type": "array", "items": {"type": "map", "values": "string"}}},
            {"name": "x2", "type": ["null", "double", "bytes"]},
            {"name": "x3", "type": {"type": "enum", "name": f"X{name}", "symbols": ["a", "b"]}},
        ]
    return written


def filled(value: Any) -> Any:
    """A message with values for the fields that `with_extras` adds."""
    if isinstance(value, list):
        return [filled(item) for item in value]
    if isinstance(value, dict) and "-type" in value:
        extras = {"x1": [{"k": "v"}], "x2": 1.5, "x3": "b"}
        return {**extras, **{name: filled(item) for name, item in value.items()}}
    return value


def agree(read: Any, golden: Any) -> bool:
    """Whether both say the same where both say something: versions differ in fields."""
    if isinstance(golden, list):
        return len(read) == len(golden) and all(map(agree, read, golden))
    if isinstance(golden, dict) and "record" in golden:
        return all(agree(read[name], value) for name, value in golden.items() if name in read)
    return bool(read == golden)


def replaced_everywhere(value: Any, record: type, field: str, default: Any) -> Any:
    """A message whose records of one type have their default in one field, at every depth."""
    if isinstance(value, tuple):
        return tuple(replaced_everywhere(item, record, field, default) for item in value)
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return value
    changes = {
        each.name: replaced_everywhere(getattr(value, each.name), record, field, default)
        for each in dataclasses.fields(value)
    }
    if type(value) is record:
        changes[field] = default
    return type(value)(**changes)


def examples_with(record: type) -> list[Any]:
    """Examples of what topics hold, of those that have a record of this type somewhere."""
    return [
        message
        for message in one_of_each_kind().values()
        if record.__name__ in records_in(type(message))
        and (
            type(message) is not Event
            or record.__name__ in records_in(type(message.body)) | {"Event"}
        )
    ]


OTHER_VERSION = {record: inlined(record, with_extras()) for record in ON_TOPICS}
OTHER_VALUE = {
    record: written_under(OTHER_VERSION[record], filled(datum(example(record))))
    for record in ON_TOPICS
}
DEFAULTED = [
    (record, field)
    for record in RECORDS
    for field in dataclasses.fields(record)
    if field.default is not dataclasses.MISSING or field.default_factory is not dataclasses.MISSING
]
ENUMS = [
    (record, field["name"], field["type"]["default"])
    for record in RECORDS
    for field in WRITTEN[record.__name__]["fields"]
    if of_each_kind(field["type"])[0] == "enum"
]


@EACH_TOPIC
@given(avro=st.binary(max_size=80))
@FEW
def test_arbitrary_bytes_after_a_valid_prefix_are_read_or_refused(
    record: type, avro: bytes
) -> None:
    assert_read_or_refused(codec_for(record), PREFIX.pack(0, 1) + avro, record)


@EACH_TOPIC
@given(value=st.binary(max_size=30))
@FEW
def test_arbitrary_bytes_are_read_or_refused(record: type, value: bytes) -> None:
    assert_read_or_refused(codec_for(record), value, record)


@EACH_TOPIC
@given(data=st.data())
@FEW
def test_a_message_truncated_anywhere_is_refused(record: type, data: st.DataObject) -> None:
    value = encoded(data.draw(any_message(record)))
    end = data.draw(st.integers(0, len(value) - 1))

    with pytest.raises(WireError):
        codec_for(record).decode(value[:end], record)


@EACH_TOPIC
@given(data=st.data())
@FEW
def test_a_message_with_a_byte_flipped_is_read_or_refused(
    record: type, data: st.DataObject
) -> None:
    value = bytearray(encoded(data.draw(any_message(record))))
    value[data.draw(st.integers(0, len(value) - 1))] ^= data.draw(st.integers(1, 255))

    assert_read_or_refused(codec_for(record), bytes(value), record)


@EACH_TOPIC
def test_a_damaged_message_of_another_version_is_read_correctly_or_refused(
    record: type,
) -> None:
    codec = reader_of(OTHER_VERSION[record])
    # In a union fastavro checks the width of an int; elsewhere neither it nor our codec does.
    wide = json.dumps(OTHER_VERSION[record]).replace('"int"', '"long"')
    schema = fastavro.parse_schema(json.loads(wide))
    rng = random.Random(record.__name__)
    for _ in range(2000):
        found = damaged(OTHER_VALUE[record], rng)
        try:
            codec.decode(found, record)
        except WireError:
            continue
        read = fastavro.schemaless_reader(
            io.BytesIO(found[PREFIX.size :]), schema, None, return_record_name=True
        )
        again = io.BytesIO()
        fastavro.schemaless_writer(again, schema, read)

        # What others may split into blocks is written as one, which is shorter.
        fewer = len(again.getvalue()) + PREFIX.size < len(found)
        assert fewer or again.getvalue() == found[PREFIX.size :]


@pytest.mark.parametrize(
    ("avro", "value", "says"),
    [
        (A_OR_B, b"\1", "2 symbols has none for byte 1"),
        (A_OR_B, b"\4", "2 symbols has none for byte 4"),
        (["null", "string"], b"\1", "no branch for byte 1"),
        (["null", "string"], b"\4", "no branch for byte 4"),
        ("boolean", b"\2", "a boolean of 2"),
        ("int", b"\x82\0", "2 bytes that it does not need"),
        ("long", b"\xff" * 9 + b"\2", "cannot fill"),
        ("long", b"\xff" * 10 + b"\1", "more than 64 bits"),
        ("string", b"\1", "a length of -1"),
        ("string", b"\x82\0a", "2 bytes that it does not need"),
        ("string", b"\4\xc3(", "UnicodeDecodeError"),
        ("bytes", b"\xfe\xff\xff\xff\xff\1", "a length of 34359738367 in a value of"),
        ({"type": "array", "items": "int"}, b"\1\4\2\0", "by its size at byte"),
        ({"type": "array", "items": "int"}, b"\3\2\2\2\0", "by its size at byte"),
        ({"type": "array", "items": "int"}, b"\1\xfe\1\2\0", "a length of 127 in|a block of 127"),
        ({"type": "array", "items": "int"}, b"\xd0\x0f\2\0", "1000 items in a value of"),
        ({"type": "map", "values": "int"}, b"\4\2a\0\2a\0\0", "'a' twice"),
        ({"type": "map", "values": "int"}, b"\2\2b\0\2\2b\0\0", "'b' twice"),
    ],
)
def test_invalid_values_that_fastavro_accepts_are_refused_by_name(
    avro: Any, value: bytes, says: str
) -> None:
    theirs = inlined(Control, WRITTEN)
    theirs["fields"].append({"name": "theirs", "type": avro})
    whole = encoded(CANCEL) + value

    with pytest.raises(BadBytes, match=says):
        reader_of(theirs).decode(whole, Control)


@pytest.mark.parametrize(
    ("avro", "says"),
    [
        ("null", "items without bytes"),
        ({"type": "array", "items": "null"}, "items without bytes"),
        ({"type": "record", "name": "Empty", "fields": []}, "items without bytes"),
        ({"type": "fixed", "name": "Nothing", "size": 0}, "items without bytes"),
        ({"type": "enum", "name": "E", "symbols": ["a" * 500_000]}, "characters; at most"),
    ],
)
def test_a_schema_that_amplifies_few_bytes_is_refused(avro: Any, says: str) -> None:
    theirs = inlined(Control, WRITTEN)
    theirs["fields"].append({"name": "theirs", "type": {"type": "array", "items": avro}})
    value = encoded(CANCEL) + (b"\x80\x89\x7a" + b"\xc0\xee\x6d\0" * 1_000_000)

    with pytest.raises(WireError, match=says):
        reader_of(theirs).decode(value, Control)


def test_a_flipped_byte_does_not_change_an_enum_symbol() -> None:
    value = bytearray(encoded(CANCEL))
    value[PREFIX.size] = 0x01

    with pytest.raises(BadBytes, match=r"Control .* byte 1"):
        codec_for(Control).decode(bytes(value), Control)


@EACH_TOPIC
@given(data=st.data(), more=st.binary(min_size=1, max_size=20))
@FEW
def test_a_message_with_trailing_bytes_is_refused(
    record: type, data: st.DataObject, more: bytes
) -> None:
    value = encoded(data.draw(any_message(record)))

    with pytest.raises(BadBytes, match=f"ends at byte {len(value)} of {len(value) + len(more)}"):
        codec_for(record).decode(value + more, record)


@EACH_TOPIC
@given(data=st.data(), begin=st.integers(0, 400), put=st.binary(max_size=12))
@FEW
def test_an_altered_message_of_another_version_is_read_or_refused(
    record: type, data: st.DataObject, begin: int, put: bytes
) -> None:
    schema = OTHER_VERSION[record]
    value = OTHER_VALUE[record]
    at = PREFIX.size + begin % (len(value) - PREFIX.size)

    damaged = value[:at] + put + value[at + data.draw(st.integers(0, 3)) :]

    assert_read_or_refused(reader_of(schema), damaged, record)


@EACH_TOPIC
def test_fields_known_to_the_writer_only_are_skipped(record: type) -> None:
    read = reader_of(OTHER_VERSION[record]).decode(OTHER_VALUE[record], record)

    assert read == example(record)


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (b"", r"begins with b''"),
        (b"\0", r"begins with b'\\x00'"),
        (b"\0\0\0\0", r"begins with b'\\x00\\x00\\x00\\x00'"),
        (b'{"kind": "cancel"}', "begins with b'{\"kin'"),
        (b"\1\0\0\0\1" + encoded(CANCEL)[5:], r"not with byte 0 and a 4-byte schema id"),
    ],
)
def test_a_value_without_the_prefix_is_refused_and_quoted(value: bytes, says: str) -> None:
    with pytest.raises(BadMagic, match=says):
        codec_for(Control).decode(value, Control)


def test_a_null_value_is_refused() -> None:
    with pytest.raises(BadBytes, match=r"null .* Control.*tombstones"):
        codec_for(Control).decode(None, Control)


def test_an_id_unknown_to_the_registry_is_refused() -> None:
    with pytest.raises(UnknownSchema, match="no schema has id 77"):
        codec_for(Control).decode(PREFIX.pack(0, 77) + encoded(CANCEL)[5:], Control)


def test_a_message_of_another_record_is_refused_naming_both() -> None:
    codec = codec_for(Control)
    value = codec.encode("another.topic", example(TrainStep))

    with pytest.raises(UnknownSchema, match=r"schema 2 .*TrainStep'.*Control'"):
        codec.decode(value, Control)


@pytest.mark.parametrize(
    "text",
    [
        '"string"',
        '["null","string"]',
        "[]",
        "null",
        "5",
        "{}",
        '{"type":"object","properties":{}}',
        '{"type":["null"]}',
        'syntax = "proto3";',
        '{"type":"record","name":"rollcall.Control"}',
        '{"type":"record","name":"rollcall.Control","fields":5}',
        '{"type":"record","name":"rollcall.Control","fields":[{"name":"kind","type":"Elsewhere"}]}',
        '{"type":"record","name":"Control","fields":[]}',
        '{"type":"enum","name":"rollcall.Control","symbols":["a"]}',
        "[" * 100_000,
    ],
    ids=lambda text: text[:40],
)
def test_any_registry_content_raises_a_wire_error_only(
    text: str,
) -> None:
    with pytest.raises(WireError):
        Codec(Holding({1: text})).decode(encoded(CANCEL), Control)


def test_an_incompatible_schema_of_the_right_name_is_refused_with_reason() -> None:
    schema = inlined(Control, WRITTEN)
    schema["fields"] = schema["fields"][1:]

    with pytest.raises(UnknownSchema, match=r"a schema ours cannot read.*kind"):
        reader_of(schema).decode(written_under(schema, CANCEL), Control)


def test_an_unknown_event_kind_is_refused_and_the_next_event_read() -> None:
    written = copy.deepcopy(WRITTEN)
    body = next(field for field in written["Event"]["fields"] if field["name"] == "body")
    body["type"].append({"type": "record", "name": "BrandNew", "fields": []})
    schema = inlined(Event, written)
    known = example(Event, body=AttemptStarted("lost"))
    value = written_under(schema, known)
    codec = reader_of(schema)
    # The branch is the last but one thing written here: its number, then "lost".
    branch = len(value) - len(b"\x08lost") - 1
    future = value[:branch] + bytes([2 * (len(body["type"]) - 1)])

    with pytest.raises(UnknownSchema, match="a schema ours cannot read"):
        codec.decode(future, Event)

    assert codec.decode(value, Event) == known


def test_disagreeing_packed_lengths_are_reported_by_field() -> None:
    value = encoded(example(PolicyVersion))
    packed = b"\x18" + example(PolicyVersion).canary_ids
    assert value.count(packed) == 1

    with pytest.raises(LengthsDisagree, match="canary_ids 4 bytes"):
        codec_for(PolicyVersion).decode(value.replace(packed, b"\x08abcd"), PolicyVersion)


@pytest.mark.parametrize(
    ("record", "field"), DEFAULTED, ids=lambda of: getattr(of, "name", None) or of.__name__
)
def test_a_field_missing_from_an_older_schema_gets_its_default(
    record: type, field: dataclasses.Field[Any]
) -> None:
    older = copy.deepcopy(WRITTEN)
    fields = older[record.__name__]["fields"]
    fields.remove(next(each for each in fields if each["name"] == field.name))
    made = field.default_factory is not dataclasses.MISSING
    default = field.default_factory() if made else field.default

    for message in examples_with(record):
        schema = inlined(type(message), older)
        value = written_under(schema, message)
        if (record, field.name) == (ModelCall, "prefix_length"):
            # No call has a prefix and does not say how long it is.
            with pytest.raises(LengthsDisagree, match="prefix_length 0"):
                reader_of(schema).decode(value, ModelCall)
            continue

        read = reader_of(schema).decode(value, type(message))

        assert read == replaced_everywhere(message, record, field.name, default)
        assert is_of(read, f"rollcall.{type(message).__name__}")


def test_default_maps_are_not_shared_between_messages() -> None:
    schema = inlined(TrainStep, WRITTEN)
    schema["fields"] = [field for field in schema["fields"] if field["name"] != "dropped"]
    codec, value = reader_of(schema), written_under(schema, example(TrainStep))

    codec.decode(value, TrainStep).dropped["stale"] = 1

    assert codec.decode(value, TrainStep).dropped == {}


@pytest.mark.parametrize(
    ("record", "field", "default"), ENUMS, ids=lambda of: getattr(of, "__name__", of)
)
def test_an_unknown_enum_symbol_is_read_as_the_default_symbol(
    record: type, field: str, default: str
) -> None:
    newer = copy.deepcopy(WRITTEN)
    for each in newer[record.__name__]["fields"]:
        if each["name"] == field:
            each["type"]["symbols"].append("brand_new")

    for message in examples_with(record):
        schema = inlined(type(message), newer)
        value = written_under(schema, replaced_everywhere(message, record, field, "brand_new"))

        read = reader_of(schema).decode(value, type(message))

        assert read == replaced_everywhere(message, record, field, default)


def test_an_unavailable_registry_is_not_blamed_on_the_bytes() -> None:
    registry, time = Moody(), Time()
    codec = Codec(registry, clock=time)
    value = codec.encode("a.topic", CANCEL)

    registry.away = True
    with pytest.raises(Unavailable, match="away"):
        codec.decode(value, Control)

    registry.away = False
    time.now += AGAIN_S
    assert codec.decode(value, Control) == CANCEL


def test_an_unavailable_registry_is_asked_once_for_hundreds_of_records() -> None:
    registry, time = Moody(), Time()
    codec = Codec(registry, clock=time)
    registry.away = True

    for n in range(200):
        with pytest.raises(Unavailable, match="away"):
            codec.decode(PREFIX.pack(0, n) + b"\2", Control)
        with pytest.raises(Unavailable, match="away"):
            codec.encode(f"topic.{n}", CANCEL)
    assert registry.asked == 1

    time.now += AGAIN_S
    with pytest.raises(Unavailable, match="away"):
        codec.encode("a.topic", CANCEL)
    assert registry.asked == 2


def test_a_slowly_failing_registry_is_asked_less_often() -> None:
    class Slow(Moody):
        def writer_id(self, topic: str, schema: str) -> int:
            time.now += 2.0
            return super().writer_id(topic, schema)

    registry, time = Slow(), Time()
    registry.away, codec = True, Codec(registry, clock=time)

    while time.now < 100:
        time.now += 0.1
        with pytest.raises(Unavailable):
            codec.encode("a.topic", CANCEL)

    assert registry.asked * 2.0 <= 100 / 4


def test_a_known_id_is_never_requested_again() -> None:
    registry = Moody()
    codec = Codec(registry)
    value = codec.encode("a.topic", CANCEL)
    codec.decode(value, Control)

    registry.away = True

    assert codec.decode(value, Control) == CANCEL


def test_a_topic_without_a_registered_schema_is_not_written_to() -> None:
    with pytest.raises(TopicsDiffer, match=r"a\.topic"):
        Codec(Holding({})).encode("a.topic", CANCEL)


def test_a_value_starts_with_byte_zero_and_its_schema_id() -> None:
    codec = codec_for(TrainStep)

    assert codec.encode("control", CANCEL)[:5] == b"\0\0\0\0\2"


@EACH_TOPIC
@given(data=st.data())
@FEW
def test_equal_messages_have_equal_bytes(record: type, data: st.DataObject) -> None:
    message = data.draw(any_message(record))

    again = copy.deepcopy(message)

    assert encoded(again) == encoded(message)


def test_maps_are_written_in_key_order() -> None:
    one = example(TrainStep, metrics={"loss": 0.5, "entropy": 1.5}, dropped={"b": 1, "a": 2})
    other = example(TrainStep, metrics={"entropy": 1.5, "loss": 0.5}, dropped={"a": 2, "b": 1})

    assert encoded(one) == encoded(other)


@pytest.mark.parametrize("actions", [(), ("a",), ("a", "b"), ("string", "b"), ("a", "b", "c")])
def test_a_nullable_list_of_any_length_is_read_back_unchanged(actions: tuple[str, ...]) -> None:
    step = example(EnvironmentStep, history=actions)

    assert codec_for(EnvironmentStep).decode(encoded(step), EnvironmentStep) == step


@pytest.mark.parametrize(
    ("message", "says"),
    [
        (Control("no_such_kind"), "Control cannot be written: 'no_such_kind'"),
        (Control("cancel", rollout_id="\ud800"), "Control cannot be written"),
        (dataclasses.replace(CANCEL, rollout_id=None), "rollout_id"),
        (example(Event, attempt=2**70), "Event cannot be written"),
        (example(Event, command_id="text"), "command_id"),
        (example(Event, body=None), "Event cannot be written"),
        (example(Event, body=CANCEL), "Event cannot be written"),
        (example(TrainStep, metrics={"loss": "much"}), "TrainStep cannot be written"),
        (example(RolloutRequest, task=None), "RolloutRequest cannot be written"),
    ],
    ids=lambda of: of if isinstance(of, str) else "",
)
def test_a_message_with_wrong_types_is_not_written(message: Any, says: str) -> None:
    with pytest.raises(WireError, match=says):
        encoded(message)


@pytest.mark.parametrize("name", GOLDEN_BYTES)
def test_golden_bytes_of_every_version_are_read_correctly(name: str) -> None:
    golden = GOLDEN_BYTES[name]
    record, _, version = golden["schema"].partition(".v")
    (expected,) = (each for each in ON_TOPICS if each.__name__ == record)
    registry = Holding({1: versions(record)[int(version) - 1]})

    read = plain(Codec(registry).decode(bytes.fromhex(golden["value"]), expected))

    assert agree(read, golden["message"]), f"{read} is not {golden['message']}"


@pytest.mark.parametrize("kind", one_of_each_kind())
def test_current_bytes_of_each_kind_equal_the_golden_ones(kind: str) -> None:
    message = one_of_each_kind()[kind]
    newest = len(versions(type(message).__name__))

    assert GOLDEN_BYTES[f"{kind}.v{newest}"]["value"] == encoded(message).hex()


def test_a_schema_names_every_record_it_needs() -> None:
    for record in RECORDS:
        assert (
            fastavro.parse_schema(json.loads(schema_text(record)))["name"]
            == schema_of(record)["name"]
        )


SCORED = Topics().scored


@FEW
@given(any_message(ScoredTrajectory))
def test_a_field_reused_as_bytes_equals_a_field_encoded_again(
    scored: ScoredTrajectory,
) -> None:
    codec = Codec(LocalRegistry())
    read = codec.encode(Topics().trajectories, scored.trajectory)
    again = dataclasses.replace(scored, trajectory=codec.decode(read, Trajectory))

    assert codec.encode_around(SCORED, again, "trajectory", read) == codec.encode(SCORED, again)


@pytest.mark.parametrize("field", ["scoring_id", "rewards", "reason"])
def test_a_field_not_read_from_bytes_is_encoded_again(field: str) -> None:
    codec, scored = Codec(LocalRegistry()), example(ScoredTrajectory)

    assert codec.encode_around(SCORED, scored, field, None) == codec.encode(SCORED, scored)


def test_a_field_of_a_foreign_writer_schema_is_encoded_again() -> None:
    bare = example(Trajectory, sequences=None, steps=None, request=None, claim=None)
    codec, scored = Codec(LocalRegistry()), example(ScoredTrajectory, trajectory=bare)
    theirs = inlined(Trajectory, WRITTEN)
    theirs["fields"] = [field for field in theirs["fields"] if field["name"] != "result"]
    out = io.BytesIO()
    values = dataclasses.asdict(scored.trajectory)
    fastavro.schemaless_writer(out, fastavro.parse_schema(theirs), values)
    value = PREFIX.pack(0, codec.registry.writer_id("", json.dumps(theirs))) + out.getvalue()
    read = dataclasses.replace(scored, trajectory=codec.decode(value, Trajectory))

    assert codec.encode_around(SCORED, read, "trajectory", value) == codec.encode(SCORED, read)


@FEW
@given(any_message(ScoredTrajectory))
def test_picked_fields_equal_those_of_the_whole_message(scored: ScoredTrajectory) -> None:
    codec = Codec(LocalRegistry())
    value = codec.encode(SCORED, scored)

    picked = codec.pick(value, ScoredTrajectory, "total", "trajectory.attempt", "scoring_id")

    assert picked == (scored.total, scored.trajectory.attempt, scored.scoring_id)


def test_picking_from_truncated_bytes_is_refused() -> None:
    codec = Codec(LocalRegistry())
    value = codec.encode(SCORED, example(ScoredTrajectory))

    with pytest.raises(BadBytes):
        codec.pick(value[:9], ScoredTrajectory, "scoring_id", "total")
    with pytest.raises(BadMagic):
        codec.pick(b"x", ScoredTrajectory, "total")
