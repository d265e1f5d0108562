"""Compressed rows are read back unchanged, and repeated texts cost little."""

from hypothesis import given
from hypothesis import strategies as st

from rollcall.schemas.packed_rows import PACK_CHARS, PackedRows

LONG = st.builds(lambda text, times: text * times, st.text(max_size=9), st.integers(0, 3000))
VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.binary(), LONG,
    st.text(st.characters(categories=["Cs", "Lu"]), max_size=9),
)  # fmt: skip


@given(st.lists(st.tuples(VALUES, VALUES), max_size=30))
def test_packed_rows_are_read_back_unchanged(rows: list[tuple[object, object]]) -> None:
    packed = PackedRows(rows)

    assert len(packed) == len(rows)
    assert repr(list(packed)) == repr(rows)  # a NaN equals nothing
    assert repr(list(packed)) == repr(rows)


def test_a_text_repeated_soon_is_stored_once() -> None:
    seen = [f"{number} " + hex(3**number)[:1000] for number in range(1000, 1300)]

    once = PackedRows((text,) for text in seen)
    thrice = PackedRows((f"told {text}", f"[{text}]", text) for text in seen)

    held = [sum(map(len, packed._blocks)) for packed in (once, thrice)]
    assert held[1] < 1.3 * held[0] < 0.8 * sum(map(len, seen))
    assert sum(len(value) for row in thrice._latest for value in row) < PACK_CHARS
