"""Generated code and fastavro read the same messages, write the same bytes and refuse the same."""

import copy
import io
import json
import random
import threading
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas import fastavro_values
from schemas.avro_code import Writers
from schemas.avro_schemas import class_of, schema_of
from schemas.claims import claimed
from schemas.codec import NOT_AVRO, PREFIX, TOO_SHORT, Codec
from schemas.errors import WireError
from schemas.messages import Control, Event
from tests.schemas.release import GOLDEN, versions
from tests.support.avro_messages import (
    FEW,
    RECORDS,
    Holding,
    any_message,
    codec_for,
    damaged,
    encoded,
    example,
    one_of_each_kind,
)

EACH_RECORD = pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.__name__)
EACH_KIND = pytest.mark.parametrize("kind", one_of_each_kind())
DAMAGES = 14
"""Of each message: 30 records, 25 messages and as many as it is itself make over 10,000."""
REFUSED = "refused"
WRONG: tuple[Any, ...] = (
    *(None, 0, -1, 64, True, 1.0, 1.5, 2**31, 2**63, 2**70, float("inf"), Decimal(3)),
    *("", "text", "1.5", "\ud800", b"", b"bytes", bytearray(b"a"), memoryview(b"ab")),
    *(np.uint8(200), np.int32(-(2**31)), np.int64(2**40), np.float32(0.5), np.arange(3)),
    *((), ("a", "b"), ["a"], [1], {}, {"b": 1.5, "a": 2}, {1: "a"}, {"a"}, object()),
    Control("cancel"),
)


def outcome(act: Callable[[], Any]) -> str:
    """What comes of it, to be compared: one NaN is not equal to another."""
    try:
        return repr(act())
    except WireError:
        return REFUSED


def judged(value: bytes, record: type) -> str:
    """What fastavro reads, where it would write that as the same bytes."""
    schema = schema_of(record)
    try:
        datum = fastavro_values.read(io.BytesIO(value[PREFIX.size :]), schema, schema)
        message = fastavro_values.message_of(datum, schema)
        same = fastavro_values.write(message) == value[PREFIX.size :]
    except (WireError, *NOT_AVRO, *TOO_SHORT):
        return REFUSED
    return repr(message) if same and claimed(message) is None else REFUSED


@EACH_RECORD
@given(data=st.data(), seed=st.integers(0, 2**32))
@FEW
def test_damaged_or_not_both_read_the_same_message_or_refuse(
    record: type, data: st.DataObject, seed: int
) -> None:
    codec, value, rng = (
        codec_for(record),
        encoded(data.draw(any_message(record))),
        random.Random(seed),
    )
    for found in (value, *(damaged(value, rng) for _ in range(DAMAGES))):
        assert outcome(lambda found=found: codec.decode(found, record)) == judged(found, record)


@EACH_RECORD
@given(data=st.data())
@FEW
def test_both_write_the_same_bytes(record: type, data: st.DataObject) -> None:
    message = data.draw(any_message(record))

    assert encoded(message)[PREFIX.size :] == fastavro_values.write(message)


@EACH_RECORD
@given(data=st.data())
@FEW
def test_with_wrong_types_both_write_the_same_bytes_or_refuse(
    record: type, data: st.DataObject
) -> None:
    message = copy.copy(data.draw(any_message(record)))
    field = data.draw(st.sampled_from(schema_of(record)["fields"]))
    object.__setattr__(message, field["name"], data.draw(st.sampled_from(WRONG)))

    ours = outcome(lambda: encoded(message)[PREFIX.size :])

    assert ours == outcome(lambda: fastavro_values.write(message))


@EACH_KIND
def test_generated_code_writes_what_is_right_by_itself(kind: str) -> None:
    message, out = one_of_each_kind()[kind], list[bytes]()

    Writers(class_of).of(schema_of(type(message)))(message, out)

    assert b"".join(out) == fastavro_values.write(message)


@EACH_KIND
def test_released_bytes_are_read_alike(kind: str) -> None:
    record = type(one_of_each_kind()[kind])
    texts = versions(record.__name__)
    golden = json.loads(GOLDEN.read_text())[f"{kind}.v{len(texts)}"]
    value = bytes.fromhex(golden["value"])
    codec = Codec(Holding({1: texts[-1]}))

    assert outcome(lambda: codec.decode(value, record)) == judged(value, record) != REFUSED


def test_threads_that_ask_for_code_at_once_all_get_it_whole() -> None:
    writers, event = Writers(class_of), example(Event)
    right = fastavro_values.write(event)
    written: list[bytes] = []

    def write() -> None:
        out: list[bytes] = []
        writers.of(schema_of(Event))(event, out)
        written.append(b"".join(out))

    threads = [threading.Thread(target=write) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert written == [right] * 8
