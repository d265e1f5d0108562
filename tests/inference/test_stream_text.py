from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from rollcall.inference.stream_text import IncrementalText, cut_at


def bytewise(ids: Sequence[int]) -> str:
    return bytes(ids).decode(errors="replace")


@given(st.text(max_size=30))
def test_streamed_text_grows_without_partial_characters(text: str) -> None:
    spoken = IncrementalText(bytewise)
    grown = ""

    for byte in text.encode():
        grown += spoken.push(byte)
        assert text.startswith(grown)

    # Text that ends like an unfinished character waits for the next bytes.
    assert grown == text.rstrip("\N{REPLACEMENT CHARACTER}")
    assert spoken.text == grown


def test_the_earliest_stop_string_cuts_the_text() -> None:
    assert cut_at("one two three", ("three", "two", "")) == ("one ", "two")
    assert cut_at("one two three", ("two", "t")) == ("one ", "t")
    assert cut_at("one two three", ("four",)) == ("one two three", "")
