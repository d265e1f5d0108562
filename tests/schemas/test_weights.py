"""Weights are read back bit for bit, or refused."""

import dataclasses
import errno
import hashlib
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollcall.schemas import atomic_files
from rollcall.schemas.errors import BadBytes, LengthsDisagree, Unavailable, WeightsDiffer, WireError
from rollcall.schemas.messages import WeightsFile
from rollcall.schemas.weights import (
    PREFIX,
    SIZE_BYTES,
    RawTensor,
    from_safetensors,
    is_by_tensor,
    read_weights,
    sha256s_of,
    to_safetensors,
    weights_digest,
    write_weights,
)


@st.composite
def raw_tensors(draw: st.DrawFn) -> RawTensor:
    dtype = draw(st.sampled_from(sorted(SIZE_BYTES)))
    shape = tuple(draw(st.lists(st.integers(0, 3), max_size=3)))
    size = SIZE_BYTES[dtype]
    for length in shape:
        size *= length
    return RawTensor(dtype, shape, draw(st.binary(min_size=size, max_size=size)))


NAMES = st.text(min_size=1, max_size=5).filter(lambda name: name != "__metadata__")
WEIGHTS = st.dictionaries(NAMES, raw_tensors(), max_size=5)
ONE = {"w": RawTensor("F32", (2,), b"\0\0\x80\x3f\0\0\0\x40"), "b": RawTensor("BF16", (), b"\1\2")}


def is_whole(file: WeightsFile) -> bool:
    """Whether the file of a record exists and can be read."""
    try:
        read_weights(file)
    except (Unavailable, WireError):
        return False
    return True


@given(WEIGHTS)
def test_weights_are_read_back_unchanged(tensors: dict[str, RawTensor]) -> None:
    assert from_safetensors(to_safetensors(tensors)) == tensors


@given(WEIGHTS)
def test_the_digest_does_not_depend_on_the_order_of_names(tensors: dict[str, RawTensor]) -> None:
    turned = dict(reversed(tensors.items()))

    assert weights_digest(turned) == weights_digest(tensors)
    assert to_safetensors(turned) == to_safetensors(tensors)


@given(WEIGHTS, WEIGHTS)
def test_equal_digests_mean_equal_weights(
    left: dict[str, RawTensor], right: dict[str, RawTensor]
) -> None:
    assert (weights_digest(left) == weights_digest(right)) == (left == right)


@given(WEIGHTS, WEIGHTS)
def test_equal_digests_over_tensors_mean_equal_weights(
    left: dict[str, RawTensor], right: dict[str, RawTensor]
) -> None:
    digests = [weights_digest(each, PREFIX) for each in (left, right)]

    assert (digests[0] == digests[1]) == (left == right)


def test_both_kinds_of_digest_are_marked_and_never_change() -> None:
    assert weights_digest(ONE) == (
        "f1a27e5219e281bee6cde866ace97c262d8e2de22305e8db9e2772d2317c2dc1"
    )
    assert weights_digest(ONE, like=PREFIX) == (
        "tensors:508f85eb41e2125f2a2b2f9dc344f2e3253c9cb65c32b48a5946c1a1b46eb538"
    )


def test_large_tensors_have_the_same_digests_as_small_ones() -> None:
    large = {name: RawTensor("U8", (600_000,), bytes([n]) * 600_000) for n, name in enumerate("ab")}

    assert sha256s_of(large) == {
        name: hashlib.sha256(tensor.data).hexdigest() for name, tensor in large.items()
    }


def test_minus_zero_and_zero_have_different_digests() -> None:
    zero = {"w": RawTensor("F32", (1,), b"\0\0\0\0")}
    minus_zero = {"w": RawTensor("F32", (1,), b"\0\0\0\x80")}

    assert weights_digest(zero) != weights_digest(minus_zero)


def test_files_are_exchangeable_with_the_safetensors_library(tmp_path: Path) -> None:
    safetensors = pytest.importorskip("safetensors.torch")
    torch = pytest.importorskip("torch")
    file = write_weights(str(tmp_path), 3, ONE)

    theirs = safetensors.load_file(file.uri.removeprefix("file://"))

    assert theirs["w"].tolist() == [1.0, 2.0]
    assert theirs["b"].dtype == torch.bfloat16
    assert from_safetensors(safetensors.save(theirs)) == dict(sorted(ONE.items()))


@pytest.mark.parametrize("by_tensor", [False, True])
@pytest.mark.parametrize("protocol", ["", "file://", "memory://"])
def test_a_written_file_is_read_back_and_no_temporary_file_remains(
    tmp_path: Path, protocol: str, by_tensor: bool
) -> None:
    where = f"{protocol}{tmp_path}/run/policy"
    file = write_weights(where, 7, ONE, by_tensor=by_tensor)

    assert read_weights(file) == ONE
    assert (file.version, file.base_version) == (7, -1)
    assert file.weights_digest == weights_digest(ONE, like=PREFIX * by_tensor)
    assert is_by_tensor(file.sha256) == by_tensor
    assert not list(tmp_path.rglob("*.tmp"))


def test_writing_the_same_weights_twice_gives_the_same_reference(tmp_path: Path) -> None:
    assert write_weights(str(tmp_path), 1, ONE) == write_weights(str(tmp_path), 1, ONE)
    assert len(list(tmp_path.iterdir())) == 1


def test_a_file_is_synced_before_and_after_it_is_renamed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[list[str]] = []

    def fsync(descriptor: int) -> None:
        synced.append(sorted(path.suffix for path in tmp_path.iterdir()))

    monkeypatch.setattr(os, "fsync", fsync)
    write_weights(str(tmp_path), 1, ONE)

    assert synced == [[".tmp"], [".safetensors"]]


def test_a_torn_file_is_detected_and_repaired_by_writing_again(tmp_path: Path) -> None:
    file = write_weights(str(tmp_path), 1, ONE)
    path = Path(file.uri.removeprefix("file://"))
    path.write_bytes(path.read_bytes()[:20])
    torn = is_whole(file)

    write_weights(str(tmp_path), 1, ONE)

    assert not torn
    assert is_whole(file)


@pytest.mark.parametrize("cut", [0, 1, 8, 20, -1])
def test_a_truncated_file_cannot_be_read(tmp_path: Path, cut: int) -> None:
    file = write_weights(str(tmp_path), 1, ONE)
    path = Path(file.uri.removeprefix("file://"))
    path.write_bytes(path.read_bytes()[:cut])

    with pytest.raises(WeightsDiffer, match="version 1"):
        read_weights(file)


@pytest.mark.parametrize("by_tensor", [False, True])
def test_one_flipped_bit_is_detected_at_any_place(tmp_path: Path, by_tensor: bool) -> None:
    file = write_weights(str(tmp_path), 1, ONE, by_tensor=by_tensor)
    path = Path(file.uri.removeprefix("file://"))
    whole = path.read_bytes()

    for at in range(len(whole)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with pytest.raises(WeightsDiffer, match="version 1"):
            read_weights(file)


def test_a_failed_write_leaves_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: str) -> None:
        raise OSError(errno.ENOSPC, "no space left on device")

    monkeypatch.setattr(atomic_files, "sync_to_disk", full)

    with pytest.raises(Unavailable, match="no space left"):
        write_weights(str(tmp_path), 1, ONE)
    assert not list(tmp_path.iterdir())


def test_a_file_that_does_not_match_its_record_is_refused(tmp_path: Path) -> None:
    file = dataclasses.replace(write_weights(str(tmp_path), 1, ONE), weights_digest="0" * 64)

    with pytest.raises(WeightsDiffer, match="promises 0000"):
        read_weights(file)


def test_a_missing_file_is_unavailable(tmp_path: Path) -> None:
    file = write_weights(str(tmp_path), 1, ONE)
    Path(file.uri.removeprefix("file://")).unlink()

    with pytest.raises(Unavailable, match="no weights at"):
        read_weights(file)


def test_an_unknown_store_is_unavailable_by_name() -> None:
    with pytest.raises(Unavailable, match="nowhere"):
        write_weights("nowhere://x", 1, ONE)


@given(st.binary(max_size=64))
def test_arbitrary_bytes_raise_a_wire_error(data: bytes) -> None:
    with pytest.raises(WireError):
        from_safetensors(data)


def test_disagreeing_tensor_lengths_are_reported() -> None:
    with pytest.raises(LengthsDisagree, match="data 3 bytes, shape 8 bytes"):
        RawTensor("F32", (2,), b"abc")
    with pytest.raises(BadBytes, match="'F12'"):
        RawTensor("F12", (), b"")
