"""Untrusted values are read within bounds, or count as absent; nothing is raised."""

import base64
import json
import tracemalloc
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollcall.schemas.bounded import (
    LARGEST,
    base64_bytes,
    inflated,
    json_object,
    whole_metric,
    whole_number,
)


@given(st.text(max_size=30) | st.text("0123456789", max_size=30))
def test_a_whole_number_is_digits_within_the_limit(text: str) -> None:
    number = whole_number(text)

    assert number is None or (0 <= number <= LARGEST and number == int(text))


@pytest.mark.parametrize("text", ["9" * 5000, "-1", "+1", "1_0", " 1", "²", "٣", "1.0", "", "1e3"])
def test_other_spellings_of_numbers_are_rejected(text: str) -> None:
    assert whole_number(text) is None


@given(st.integers(0, LARGEST))
def test_a_whole_number_is_read_back_unchanged(number: int) -> None:
    assert whole_number(str(number)) == number


@given(st.text(max_size=50), st.binary(max_size=50))
def test_base64_and_zlib_data_is_decoded_or_rejected(text: str, data: bytes) -> None:
    assert base64_bytes(base64.b64encode(data).decode()) == data
    assert inflated(zlib.compress(data), 50) == data
    base64_bytes(text)
    inflated(data, 50)
    assert json_object(text) is None or isinstance(json.loads(text), dict)


@pytest.mark.parametrize("size", [1001, 1 << 28])
def test_data_that_inflates_beyond_the_limit_is_rejected_without_memory_use(size: int) -> None:
    packed = zlib.compress(bytes(min(size, 1 << 24)), 9)
    tracemalloc.start()

    assert inflated(packed, 1000) is None

    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()


def test_truncated_compressed_data_is_rejected() -> None:
    packed = zlib.compress(bytes(range(200)))

    assert inflated(packed[:-3], 1000) is None


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 100_000, "[]", "1", "null", "{", ""])
def test_json_that_is_not_an_object_is_rejected_at_any_depth(text: str) -> None:
    assert json_object(text) is None


@given(st.floats() | st.integers() | st.text(max_size=3) | st.none())
def test_a_metric_is_a_count_or_zero(value: object) -> None:
    assert 0 <= whole_metric(value) <= LARGEST
