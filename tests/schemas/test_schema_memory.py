"""A schema id that changes its meaning is detected, in one process and by the next.

How processes agree through the log is tested in `tests/compose/test_schema_ids.py`.
"""

import json
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollcall.schemas.codec import Codec
from rollcall.schemas.errors import RegistryDiffers, Unavailable
from rollcall.schemas.headers import Headers
from rollcall.schemas.messages import Control
from rollcall.schemas.schema_memory import (
    FINGERPRINT,
    FORGOTTEN_BY,
    SCHEMA_ID,
    IdRecord,
    SchemaMemory,
    fingerprint,
    first_in,
    id_record,
)
from tests.support.schemas_swapped import CANCEL, OURS, THEIRS, registry

FOUND = fingerprint("a")


def test_swapped_schema_ids_are_detected_by_a_restarted_worker() -> None:
    # Given a record that was written while the ids were correct
    log: dict[int, str] = {}
    writer = Codec(registry([THEIRS, OURS]), memory=SchemaMemory(first_in(log)))
    value = writer.encode("t", CANCEL)
    assert writer.decode(value, Control) == CANCEL

    # When another process is answered by a registry that assigned them anew
    reader = Codec(registry([OURS, THEIRS]), memory=SchemaMemory(first_in(log)))

    # Then it neither reads nor writes, and names the id and the remedy
    with pytest.raises(RegistryDiffers, match=r"than before for id 2.*topics forget-id 2`"):
        reader.decode(value, Control)

    # And it continues as soon as the registry is correct again
    reader.registry = registry([THEIRS, OURS])
    assert reader.decode(value, Control) == CANCEL


def test_an_id_reassigned_to_another_record_is_not_used_for_writing() -> None:
    log: dict[int, str] = {}
    value = b"\0\0\0\0\1" + Codec(registry([OURS])).encode("t", CANCEL)[5:]
    Codec(registry([THEIRS]), memory=SchemaMemory(first_in(log))).decode(value, Control)

    with pytest.raises(RegistryDiffers):
        Codec(registry([OURS]), memory=SchemaMemory(first_in(log))).encode("t", CANCEL)


def test_the_formatting_of_a_schema_does_not_matter() -> None:
    log: dict[int, str] = {}
    for text in (OURS, OURS.replace(",", " , "), json.dumps(json.loads(OURS), indent=4)):
        codec = Codec(registry([text]), memory=SchemaMemory(first_in(log)))
        value = b"\0\0\0\0\1" + Codec(registry([OURS])).encode("t", CANCEL)[5:]
        assert codec.decode(value, Control)

    assert len(log) == 1


def test_without_a_log_ids_are_remembered_in_the_process() -> None:
    memory = SchemaMemory()

    memory.tie(1, "a")
    memory.tie(1, "a")

    with pytest.raises(RegistryDiffers):
        memory.tie(1, "b")


def test_an_unavailable_log_is_asked_once_for_all_waiting_ids() -> None:
    asked = []

    def away(offered: Mapping[int, str]) -> dict[int, str]:
        asked.append(offered)
        msg = "no broker answers"
        raise Unavailable(msg)

    memory = SchemaMemory(away, clock=lambda: 0.0)
    for schema_id in range(100):
        with pytest.raises(Unavailable, match="no broker answers"):
            memory.tie(schema_id, "a")

    assert len(asked) == 1


@given(st.integers(0, 2**32 - 1), st.text())
def test_an_id_record_is_read_back_unchanged(schema_id: int, text: str) -> None:
    tied = IdRecord(schema_id, fingerprint(text))
    forgotten = id_record(IdRecord(schema_id, forgotten_by=text).headers())

    assert id_record(tied.headers()) == tied
    assert forgotten is not None
    assert (forgotten.schema_id, forgotten.fingerprint) == (schema_id, "")


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [(SCHEMA_ID, b"1")],
        [(SCHEMA_ID, b"1"), (SCHEMA_ID, b"1")],
        [(SCHEMA_ID, b"1"), (FINGERPRINT, b"")],
        [(SCHEMA_ID, b"1"), (FINGERPRINT, FOUND.upper().encode())],
        [(SCHEMA_ID, b"1"), (FINGERPRINT, FOUND.encode() * 2)],
        [(SCHEMA_ID, b"1"), (FINGERPRINT, FOUND.encode()), (FORGOTTEN_BY, b"me")],
        [(SCHEMA_ID, b"-1"), (FINGERPRINT, FOUND.encode())],
        [(SCHEMA_ID, b"9" * 5000), (FINGERPRINT, FOUND.encode())],
        [(SCHEMA_ID, "\N{ARABIC-INDIC DIGIT ONE}".encode()), (FINGERPRINT, FOUND.encode())],
        [(SCHEMA_ID, b"\xff"), (FORGOTTEN_BY, b"me")],
    ],
)
def test_malformed_headers_give_no_id_record(headers: Headers) -> None:
    assert id_record(headers) is None
