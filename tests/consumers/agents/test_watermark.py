"""Commit metadata: written, read, and never longer than the broker's limit."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollcall.consumers.agents.watermark import MOST_STRAGGLERS, Watermark, read_watermark
from rollcall.consumers.loop.finished_offsets import METADATA_BYTES

OFFSETS = st.integers(0, 2**62)
UUID = "q3Zk1mJ0T6mZ8oJm3m1XwA"


@st.composite
def watermarks(draw: st.DrawFn) -> Watermark:
    *stragglers, bulk_low = sorted(draw(st.sets(OFFSETS, min_size=1, max_size=MOST_STRAGGLERS + 1)))
    last = draw(st.none() | OFFSETS)
    return Watermark(
        bulk_low, last, tuple(stragglers), draw(st.sampled_from(["", UUID])), draw(st.booleans())
    )


@given(watermarks())
def test_watermarks_are_read_back_as_written(watermark: Watermark) -> None:
    assert read_watermark(watermark.write()) == watermark


@given(st.sets(OFFSETS, min_size=MOST_STRAGGLERS, max_size=MOST_STRAGGLERS))
def test_the_maximum_of_stragglers_fits_at_any_distance(offsets: set[int]) -> None:
    word = Watermark(2**62, 2**62, tuple(sorted(offsets)), UUID, True).write()
    assert len(word) <= METADATA_BYTES


def test_the_longest_commit_metadata_is_within_the_brokers_limit() -> None:
    apart = 2**62 // MOST_STRAGGLERS
    stragglers = tuple(apart * n for n in range(1, MOST_STRAGGLERS + 1))
    assert len(Watermark(2**62, 2**62, stragglers, UUID, True).write()) <= METADATA_BYTES


def test_a_reader_starts_at_its_oldest_straggler() -> None:
    assert Watermark(90, 4, (7, 30)).low == 7
    assert Watermark(90, 4).low == 90


@pytest.mark.parametrize(
    "word",
    [
        "",
        "by hand",
        "1;2;3",
        "1;2;3;2;;;",
        "2;5;3;5;;",
        "2;;3;2;;;",
        "2;5;3;x;;;",
        "2;5;x;5;;;",
        "2;5;3;5;not base64!;;",
        "2;5;3;5;gA==;;",
        "2;4;3;5;;;",
        "2;7;3;5;Bw==;;",
    ],
)
def test_foreign_commit_metadata_is_no_watermark(word: str) -> None:
    assert read_watermark(word) is None
