"""A delta holds exactly the changed elements and restores the weights, or is refused."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollcall.schemas.errors import WeightsDiffer
from rollcall.schemas.weight_deltas import (
    BYTES,
    FORMS,
    HEADER,
    PAIRS,
    Delta,
    applied,
    compared,
    decoded,
    encoded,
    encoded_plainly,
)
from rollcall.schemas.weights import RawTensor


def shorts(*values: int, dtype: str = "U16") -> RawTensor:
    return RawTensor(dtype, (len(values),), np.array(values, "<u2").tobytes())


@st.composite
def steps(draw: st.DrawFn) -> tuple[dict[str, RawTensor], dict[str, RawTensor]]:
    """Weights, and the same with some elements changed, often none."""
    dtypes = draw(st.lists(st.sampled_from(["BF16", "F32", "U8"]), max_size=3))
    before, after = {}, {}
    for number, dtype in enumerate(dtypes):
        size = {"BF16": 2, "F32": 4, "U8": 1}[dtype]
        data = draw(st.binary(max_size=40).map(lambda b, size=size: b[: len(b) // size * size]))
        changed = bytearray(data)
        for at in draw(st.lists(st.integers(0, max(len(data) - 1, 0)), max_size=4)):
            if data:
                changed[at] = draw(st.integers(0, 255))
        shape = (len(data) // size,)
        before[f"t{number}"] = RawTensor(dtype, shape, data)
        after[f"t{number}"] = RawTensor(dtype, shape, bytes(changed))
    return before, after


@given(steps())
def test_a_delta_applied_to_the_old_weights_gives_the_new_ones(
    step: tuple[dict[str, RawTensor], dict[str, RawTensor]],
) -> None:
    before, after = step
    delta, _ = compared(before, after)
    size = delta.values.dtype.itemsize

    for data in (encoded(delta), encoded_plainly(delta)):
        read = decoded(data, delta.elements, size)
        once = applied(before, read)
        assert once == after
        assert applied(once, read) == after


@given(st.sets(st.integers(0, 400_000), max_size=40), st.sampled_from([400_001, (1 << 32) + 1]))
def test_changed_places_are_read_back_unchanged_in_every_form(
    places: set[int], elements: int
) -> None:
    where = np.array(sorted(places), np.int64)
    delta = Delta(elements, where, np.arange(len(where), dtype="<u2"))

    for data in (encoded(delta), encoded_plainly(delta)):
        assert len(data) <= len(encoded_plainly(delta))
        read = decoded(data, elements, 2)
        assert (read.places.tolist(), read.values.tolist()) == (
            where.tolist(), delta.values.tolist(),
        )  # fmt: skip


def test_the_binary_format_matches_astraflow() -> None:
    delta, _ = compared({"w": shorts(1, 2, 3, 4)}, {"w": shorts(1, 2, 9, 4)})

    data = encoded_plainly(delta)

    assert data.hex() == "0100000000000000" + "0200" + "0000" + "00000000" + "02000000" + "0900"
    assert decoded(data, 4, 2).places.tolist() == [2]


@pytest.mark.parametrize(
    ("changed", "flags", "size"),
    [(15_800_000, 0, 94_800_016), (148_000_000, 1, 1_480_000_016)],
)
def test_a_plain_delta_has_the_published_size(changed: int, flags: int, size: int) -> None:
    assert HEADER.size + changed * (np.dtype(FORMS[flags]).itemsize + 2) == size


def test_gaps_are_written_in_the_smallest_unit() -> None:
    def flags_at(gap: int) -> int:
        places = np.arange(0, 100 * gap, gap, dtype=np.int64)
        data = encoded(Delta(100 * gap, places, np.zeros(100, "<u2")))
        return int(HEADER.unpack_from(data)[2])

    assert [flags_at(gap) for gap in (1, 100, 1_000, 1_000_000)] == [BYTES, BYTES, PAIRS, 0]


def test_minus_zero_is_a_change_and_an_unchanged_nan_is_not() -> None:
    delta, _ = compared(
        {"w": shorts(0x0000, 0x7FC1, dtype="BF16")}, {"w": shorts(0x8000, 0x7FC1, dtype="BF16")}
    )

    assert (delta.places.tolist(), delta.values.tolist()) == ([0], [0x8000])


def test_applying_a_delta_gives_read_only_weights_and_keeps_the_old() -> None:
    before = {"w": shorts(1, 2)}

    after = applied(before, compared(before, {"w": shorts(1, 3)})[0])

    assert (before, after) == ({"w": shorts(1, 2)}, {"w": shorts(1, 3)})
    assert memoryview(after["w"].data).readonly


@given(st.binary(max_size=40), st.integers(0, 20))
def test_arbitrary_bytes_are_refused_or_give_a_valid_delta(data: bytes, elements: int) -> None:
    try:
        delta = decoded(data, elements, 2)
    except WeightsDiffer:
        return
    assert (delta.places < elements).all()


def test_a_delta_of_other_weights_is_refused() -> None:
    delta, _ = compared({"w": shorts(1)}, {"w": shorts(2)})

    with pytest.raises(WeightsDiffer, match="of another model"):
        applied({"w": shorts(1, 1)}, delta)
