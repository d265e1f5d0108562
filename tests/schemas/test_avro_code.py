"""All forms of generated code, and fastavro, read, write and refuse the same."""

import copy
import io
import json
import random
import sys
import threading
from collections.abc import Callable
from decimal import Decimal
from functools import cache, partial
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollcall.schemas import fastavro_values
from rollcall.schemas.avro_code import Writers
from rollcall.schemas.avro_schemas import class_of, schema_of
from rollcall.schemas.claims import claim_in
from rollcall.schemas.codec import NOT_AVRO, PREFIX, TOO_SHORT, Codec
from rollcall.schemas.errors import WireError
from rollcall.schemas.message_code import PLAIN, message_code
from rollcall.schemas.messages import Control, Event
from tests.schemas.release import GOLDEN, versions
from tests.support.avro_blocks import in_blocks
from tests.support.avro_messages import (
    FEW,
    RECORDS,
    any_message,
    codec_for,
    damaged,
    encoded,
    example,
    one_of_each_kind,
)

EACH_RECORD = pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.__name__)
FORMS = tuple(dict.fromkeys((PLAIN, message_code())))
"""One or two: compiled code is there where it could be built."""
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
    """The outcome in comparable form: one NaN is not equal to another."""
    try:
        return repr(act())
    except WireError as error:
        return f"{REFUSED}: {error}"


@cache
def codecs(record: type) -> list[Codec]:
    """One of each form, which know the record."""
    return [codec_for(record, code) for code in FORMS]


def outcomes(record: type, act: Callable[[Codec], Any]) -> str:
    """The outcome with each form of the code, which is the same including error messages."""
    of_each = {outcome(partial(act, codec)) for codec in codecs(record)}
    assert len(of_each) == 1, of_each
    return of_each.pop()


def judged(value: bytes, record: type) -> set[str]:
    """What may be read: what fastavro reads, and that alone where it would write the same bytes.

    Where it would write fewer, an array or a map lies in other blocks than one without a size.
    """
    schema = schema_of(record)
    try:
        datum = fastavro_values.read(io.BytesIO(value[PREFIX.size :]), schema, schema)
        message = fastavro_values.message_of(datum, schema)
        again = fastavro_values.write(message)
    except (WireError, *NOT_AVRO, *TOO_SHORT):
        return {REFUSED}
    if claim_in(message) is not None:
        return {REFUSED}
    if again == value[PREFIX.size :]:
        return {repr(message)}
    return {REFUSED, repr(message)} if len(again) < len(value) - PREFIX.size else {REFUSED}


@EACH_RECORD
@given(data=st.data(), seed=st.integers(0, 2**32))
@FEW
def test_all_codecs_read_damaged_bytes_alike_or_refuse_them(
    record: type, data: st.DataObject, seed: int
) -> None:
    value, rng = encoded(data.draw(any_message(record))), random.Random(seed)
    for found in (value, *(damaged(value, rng) for _ in range(DAMAGES))):
        read = outcomes(record, lambda codec, found=found: codec.decode(found, record))

        assert (REFUSED if read.startswith(REFUSED) else read) in judged(found, record)


@EACH_RECORD
@given(data=st.data(), seed=st.integers(0, 2**32))
@FEW
def test_all_codecs_read_any_block_layout(record: type, data: st.DataObject, seed: int) -> None:
    message = data.draw(any_message(record))
    value = PREFIX.pack(0, 1) + in_blocks(message, random.Random(seed))
    try:
        whole = codecs(record)[0].decode(encoded(message), record)
    except WireError:  # of lengths that do not fit each other
        return

    assert outcomes(record, lambda codec: codec.decode(value, record)) == repr(whole)

    # And no truncated or changed form of it is taken for another message
    rng = random.Random(seed)
    for found in (value[:-1], *(damaged(value, rng) for _ in range(DAMAGES))):
        read = outcomes(record, lambda codec, found=found: codec.decode(found, record))
        assert (REFUSED if read.startswith(REFUSED) else read) in judged(found, record)


@EACH_RECORD
@given(data=st.data())
@FEW
def test_all_codecs_write_the_same_bytes(record: type, data: st.DataObject) -> None:
    message = data.draw(any_message(record))
    right = fastavro_values.write(message)

    for code in FORMS:
        out: list[bytes] = []
        code.writer(record)(message, out)
        assert b"".join(out) == right


@EACH_RECORD
@given(data=st.data())
@FEW
def test_all_codecs_write_the_same_bytes_or_refuse_wrong_types(
    record: type, data: st.DataObject
) -> None:
    message = copy.copy(data.draw(any_message(record)))
    field = data.draw(st.sampled_from(schema_of(record)["fields"]))
    object.__setattr__(message, field["name"], data.draw(st.sampled_from(WRONG)))

    written = outcomes(record, lambda codec: codec.encode("a.topic", message)[PREFIX.size :])

    assert written == outcome(lambda: fastavro_values.write(message))


@pytest.mark.parametrize("kind", one_of_each_kind())
def test_all_codecs_read_released_bytes_alike(kind: str) -> None:
    record = type(one_of_each_kind()[kind])
    golden = json.loads(GOLDEN.read_text())[f"{kind}.v{len(versions(record.__name__))}"]
    value = PREFIX.pack(0, 1) + bytes.fromhex(golden["value"])[PREFIX.size :]

    read = outcomes(record, lambda codec: codec.decode(value, record))

    assert {read} == judged(value, record) != {REFUSED}


def test_code_compiled_from_other_sources_is_ignored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    older = ModuleType("rollcall.schemas.avro_compiled")
    older.__dict__.update(MADE_FROM="other sources", READERS={}, WRITERS={})
    monkeypatch.setitem(sys.modules, older.__name__, older)

    assert message_code.__wrapped__() is PLAIN


def test_concurrent_threads_all_get_complete_code() -> None:
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
