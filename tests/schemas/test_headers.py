"""Headers for people and tools: CloudEvents, traces, and the reason of a dead letter."""

import re
from datetime import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollcall.schemas.errors import BadBytes, WireError
from rollcall.schemas.headers import (
    MESSAGE_BYTES,
    Headers,
    dead_letter_headers,
    full_headers,
    hot_headers,
    traceparent,
)
from tests.support.avro_messages import FEW

ADDED = [
    "dlq_topic", "dlq_partition", "dlq_offset", "dlq_timestamp", "dlq_group", "dlq_error",
    "dlq_message", "dlq_stack_hash", "dlq_attempt", "dlq_first_failed_at",
]  # fmt: skip


def raised(message: str) -> BadBytes:
    with pytest.raises(BadBytes) as info:
        raise BadBytes(message)
    return info.value


def buried(original: Headers | None, error: Exception) -> Headers:
    return dead_letter_headers(original, "rl.control", 3, 41, 1_700_000_000_000, "rl.agents", error)


@given(st.lists(st.tuples(st.text(max_size=5), st.binary(max_size=5)), max_size=5))
@FEW
def test_a_dead_letter_keeps_its_headers_in_order_including_duplicates(original: Headers) -> None:
    headers = buried(original, BadBytes("cut short"))

    assert headers[: len(original)] == original
    assert [name for name, _ in headers[len(original) :]] == ADDED


def test_a_dead_letter_reports_its_origin_group_and_error() -> None:
    found = dict(buried(None, BadBytes("Control ends at byte 4 of 9")))

    assert found["dlq_topic"] == b"rl.control"
    assert (found["dlq_partition"], found["dlq_offset"]) == (b"3", b"41")
    assert found["dlq_timestamp"] == b"1700000000000"
    assert found["dlq_group"] == b"rl.agents"
    assert found["dlq_error"] == b"BadBytes"
    assert found["dlq_message"] == b"Control ends at byte 4 of 9"
    assert datetime.fromisoformat(found["dlq_first_failed_at"].decode()).tzinfo is not None


@given(st.text(alphabet=st.characters(), min_size=MESSAGE_BYTES // 2, max_size=MESSAGE_BYTES))
@FEW
def test_an_error_message_is_cut_to_1_kb_of_valid_utf8(text: str) -> None:
    message = dict(buried(None, WireError(text * 3)))["dlq_message"]

    assert len(message) <= MESSAGE_BYTES
    assert message.decode()


def test_an_unencodable_error_message_still_gives_a_dead_letter() -> None:
    assert dict(buried(None, WireError("lone \ud800")))["dlq_message"] == b"lone ?"


def test_failures_at_one_place_share_a_stack_hash() -> None:
    here = [dict(buried(None, raised(text)))["dlq_stack_hash"] for text in ("one", "other")]
    there = dict(buried(None, BadBytes("never raised")))["dlq_stack_hash"]

    assert here[0] == here[1] != there


def test_hot_topics_carry_id_and_type_only() -> None:
    assert hot_headers("rollcall.ModelCall", b"\x01\xff") == [
        ("ce_id", b"01ff"),
        ("ce_type", b"rollcall.ModelCall"),
    ]


def test_full_headers_are_a_cloud_event_in_binary_mode() -> None:
    headers = full_headers("Trajectory", "r/1", "rl.agents", "r", "r")
    found = dict(headers)

    assert len(found) == len(headers)
    assert found["ce_specversion"] == b"1.0"
    assert found["ce_id"] == b"r/1"
    assert found["ce_type"] == b"rollcall.Trajectory"
    assert found["ce_source"] == b"rl.agents"
    assert found["ce_partitionkey"] == b"r"
    assert found["content-type"] == b"application/avro"
    assert datetime.fromisoformat(found["ce_time"].decode()).tzinfo is not None


@given(st.text(max_size=8), st.text(max_size=8))
@FEW
def test_a_rollout_has_one_w3c_trace(one: str, other: str) -> None:
    assert re.fullmatch(rb"00-[0-9a-f]{32}-[0-9a-f]{16}-01", traceparent(one))
    assert (traceparent(one) == traceparent(other)) == (one == other)
