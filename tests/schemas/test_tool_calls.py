"""Equivalent tool calls have one canonical text; unparsable ones stay unchanged."""

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollcall.schemas.errors import WireError
from rollcall.schemas.tool_calls import (
    ToolCall,
    arguments_of,
    canonical_arguments,
    tool_calls_of,
    tool_calls_text,
)
from tests.support.avro_messages import FEW

WORDS = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats(-9, 9) | WORDS,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(WORDS, inner, max_size=2),
    max_leaves=5,
)


@given(st.lists(st.builds(ToolCall, WORDS, WORDS, WORDS.map(canonical_arguments)), max_size=3))
@FEW
def test_tool_calls_are_read_back_unchanged(calls: list[ToolCall]) -> None:
    assert tool_calls_of(tool_calls_text(calls)) == tuple(calls)


def test_the_canonical_text_has_sorted_keys_and_no_spaces() -> None:
    assert tool_calls_text([ToolCall("c", "bash", '{ "b": 1, "a": "é" }')]) == (
        '[{"id":"c","type":"function","function":{"name":"bash",'
        '"arguments":"{\\"b\\":1,\\"a\\":\\"é\\"}"}}]'
    )


@given(VALUES, st.booleans())
@FEW
def test_canonicalising_arguments_is_idempotent(value: Any, spaced: bool) -> None:
    text = orjson.dumps({"of": value}, option=orjson.OPT_INDENT_2 if spaced else None).decode()
    once = canonical_arguments(text)

    assert canonical_arguments(once) == once
    assert orjson.loads(once) == orjson.loads(text)


@pytest.mark.parametrize(
    "text", ["", "{", "[1]", '"x"', "null", '{"a": NaN}', '{"a": "\\ud800"}', "[" * 5000, "{'a':1}"]
)
def test_arguments_that_are_not_an_object_stay_unchanged(text: str) -> None:
    assert canonical_arguments(text) == text


@pytest.mark.parametrize(
    ("deep", "is_read"), [(100, True), (199, True), (250, False), (990, False)]
)
def test_too_deeply_nested_arguments_are_rejected_at_any_stack_depth(
    deep: int, is_read: bool
) -> None:
    text = '{"a":' + "[" * deep + "]" * deep + "}"

    def read_at(depth: int) -> bool:
        return read_at(depth - 1) if depth else arguments_of(text) is not None

    assert [read_at(0), read_at(600)] == [is_read, is_read]


def test_brackets_inside_a_string_do_not_count_as_nesting() -> None:
    text = '{"a":"' + "[{" * 500 + '"}'

    assert canonical_arguments(text) == text
    assert arguments_of(text) is not None


def test_a_long_number_keeps_all_its_digits() -> None:
    number = "123456789012345678901234567890"

    assert canonical_arguments(f'{{"n": {number}}}') == f'{{"n":{number}}}'


@pytest.mark.parametrize(
    "text", ["x", "{}", "1", "[1]", '[{"id": "a"}]', '[{"id": 1, "function": {}}]', '["abc"]',
             '[{"id": "a", "function": {"name": "b", "arguments": {}}}]'],
)  # fmt: skip
def test_an_invalid_list_of_calls_is_refused(text: str) -> None:
    with pytest.raises(WireError, match="tool calls must be"):
        tool_calls_of(text)
