"""Tensors in parts: any number of ranks reads the parts of any other number."""

import os
import resource
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from rollcall.schemas.errors import Refused, WeightsDiffer
from rollcall.schemas.weights import RawTensor, from_safetensors, write_weights
from rollcall.trainer.checkpoints.shards import (
    Shard,
    ShardedTensor,
    digests_of,
    link_parts,
    merged,
    overlap,
    part_of,
    parts_of,
    read_part,
    rows_of,
    write_parts,
)

TEN = Shard((0, 0), (5, 2), "a", 0, ""), Shard((5, 0), (5, 2), "b", 0, "")


def tensor(rows: int, columns: int = 3, dtype: str = "F32") -> RawTensor:
    values = np.arange(rows * columns, dtype="<f4").reshape(rows, columns)
    data = values.astype("<f4" if dtype == "F32" else "<f2").tobytes()
    return RawTensor(dtype, (rows, columns), data)


def saved(directory: Path, tensors: dict[str, RawTensor], world: int) -> dict[str, ShardedTensor]:
    ranks = [
        write_parts(directory, f"w-{rank}", parts_of(tensors, rank, world)).tensors
        for rank in range(world)
    ]
    return merged(ranks)


@pytest.mark.parametrize(
    ("rank", "read"),
    [(0, {"a": (0, 4)}), (1, {"a": (4, 5), "b": (0, 3)}), (2, {"b": (3, 5)})],
)
def test_ten_rows_of_two_ranks_are_read_by_three_correctly(
    rank: int, read: dict[str, tuple[int, int]]
) -> None:
    rows = rows_of(10, rank, 3)

    met = {
        shard.file: (at[0][0].start, at[0][0].stop)
        for shard in TEN
        if (at := overlap(shard, (rows.start, 0), (len(rows), 2)))
    }

    assert met == read


@given(st.integers(0, 40), st.integers(1, 9))
def test_every_row_belongs_to_one_rank(rows: int, world: int) -> None:
    stretches = [rows_of(rows, rank, world) for rank in range(world)]

    assert [row for stretch in stretches for row in stretch] == list(range(rows))


@pytest.mark.parametrize(("rank", "world"), [(0, 0), (2, 2), (-1, 1)])
def test_an_invalid_rank_is_refused_by_its_number(rank: int, world: int) -> None:
    with pytest.raises(Refused, match=f"rank {rank} of a world of {world}"):
        rows_of(4, rank, world)


@pytest.mark.parametrize("written", [1, 2, 5])
@pytest.mark.parametrize("read", [1, 2, 4])
def test_parts_written_by_some_ranks_are_read_by_any_number(
    tmp_path: Path, written: int, read: int
) -> None:
    tensors = {
        "rows": tensor(7), "half": tensor(4, dtype="F16"), "few": tensor(1), "none": tensor(0),
        "empty": RawTensor("F32", (3, 0), b""), "number": RawTensor("F64", (), b"12345678"),
    }  # fmt: skip
    layout = saved(tmp_path, tensors, written)

    found = {
        name: [read_part(tmp_path, name, layout[name], rank, read) for rank in range(read)]
        for name in tensors
    }

    assert layout.keys() == tensors.keys()
    for name, parts in found.items():
        if name == "number":
            assert parts == [tensors[name]] * read
        else:
            assert b"".join(part.data for part in parts) == tensors[name].data
            assert sum(part.shape[0] for part in parts) == tensors[name].shape[0]


def test_a_file_of_parts_is_valid_safetensors(tmp_path: Path) -> None:
    tensors = {"b": tensor(4), "a": tensor(3, dtype="F16")}

    file = write_parts(tmp_path, "w", parts_of(tensors))

    data = (tmp_path / file.name).read_bytes()
    assert from_safetensors(data) == tensors
    assert file.size_bytes == len(data)
    assert [path.name for path in tmp_path.iterdir()] == [file.name]


def test_large_tensors_have_the_digest_of_their_bytes_on_disk(tmp_path: Path) -> None:
    tensors = {f"w{number}": tensor(100_000 + number) for number in range(4)}

    written = write_parts(tmp_path, "weights", parts_of(tensors))

    lying = (tmp_path / written.name).read_bytes()
    for name, known in written.tensors.items():
        (shard,), data = known.shards, tensors[name].data
        assert lying[shard.begin : shard.begin + len(data)] == data
        assert shard.digest == f"xxh3:{xxhash.xxh3_128_hexdigest(data)}"


def test_the_digest_of_empty_data_matches_the_specification() -> None:
    """xxHash's own vector: XXH128 of nothing with seed 0."""
    nothing = digests_of({"none": RawTensor("U8", (0,), b"")})

    assert nothing == {"none": "xxh3:99aa06d3014798d86001c324468d497f"}


def test_a_file_of_parts_that_cannot_be_finished_leaves_no_files(tmp_path: Path) -> None:
    tensors = {f"w{number}": tensor(100_000 + number) for number in range(4)}
    most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 21, most[1]))

    try:
        with pytest.raises(OSError, match="File too large"):
            write_parts(tmp_path, "weights", parts_of(tensors))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, most)

    assert not list(tmp_path.iterdir())


def test_a_part_across_both_dimensions_is_found_by_its_offset(tmp_path: Path) -> None:
    whole = tensor(4, 4)
    values = np.frombuffer(whole.data, "<f4").reshape(4, 4)
    quarters = []
    for row in (0, 2):
        for column in (0, 2):
            data = values[row : row + 2, column : column + 2].tobytes()
            part = part_of(RawTensor("F32", (2, 2), data))
            assert part is not None
            placed = replace(part, shape=(4, 4), offset=(row, column))
            quarters.append(write_parts(tmp_path, f"{row}{column}", {"w": placed}).tensors)

    assert read_part(tmp_path, "w", merged(quarters)["w"]) == whole


def test_a_missing_rank_is_reported_with_the_parts_that_exist(tmp_path: Path) -> None:
    only = write_parts(tmp_path, "w", parts_of({"w": tensor(6)}, 0, 2)).tensors

    with pytest.raises(WeightsDiffer, match=r"'w' of shape \(6, 3\).*\(3, 3\) at \(0, 0\); is a"):
        merged([only])
    with pytest.raises(WeightsDiffer, match="is a rank missing"):
        merged([only, only])
    with pytest.raises(WeightsDiffer, match="is a rank missing"):
        read_part(tmp_path, "w", only["w"], 1, 2)


def test_parts_of_two_models_are_not_merged(tmp_path: Path) -> None:
    first = write_parts(tmp_path, "0", parts_of({"w": tensor(6)}, 0, 2)).tensors
    second = write_parts(tmp_path, "1", parts_of({"w": tensor(8)}, 1, 2)).tensors

    with pytest.raises(WeightsDiffer, match=r"\(8, 3\) on rank 1 and F32 \(6, 3\)"):
        merged([first, second])


def test_a_damaged_part_is_not_returned(tmp_path: Path) -> None:
    layout = saved(tmp_path, {"w": tensor(6), "x": tensor(2)}, 2)
    shard = layout["w"].shards[1]
    path = tmp_path / shard.file
    data = bytearray(path.read_bytes())
    data[shard.begin] ^= 1
    path.write_bytes(data)

    assert read_part(tmp_path, "w", layout["w"], 0, 2).shape == (3, 3)
    assert read_part(tmp_path, "x", layout["x"]) == tensor(2)
    with pytest.raises(WeightsDiffer, match=r"'w' has digest xxh3:.* cut short or written over"):
        read_part(tmp_path, "w", layout["w"], 1, 2)


def test_a_file_with_the_same_tensors_is_linked_rather_than_written(tmp_path: Path) -> None:
    tensors = {"b": tensor(4), "a": tensor(3, dtype="F16")}
    file = tmp_path / "w" / Path(write_weights(str(tmp_path / "w"), 1, tensors).uri).name

    linked = link_parts(tmp_path, "w", parts_of(tensors), file)

    assert linked is not None
    assert (tmp_path / linked.name).samefile(file)
    assert {n: read_part(tmp_path, n, at) for n, at in linked.tensors.items()} == tensors
    (tmp_path / linked.name).unlink()
    assert linked == write_parts(tmp_path, "w", parts_of(tensors))


@pytest.mark.parametrize("why", ["other tensors", "cut short", "gone", "no links"])
def test_a_file_with_different_content_is_not_linked(
    why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensors = {"b": tensor(4)}
    file = tmp_path / "w" / Path(write_weights(str(tmp_path / "w"), 1, tensors).uri).name
    if why == "cut short":
        file.write_bytes(file.read_bytes()[:-1])
    elif why == "gone":
        file.unlink()
    elif why == "no links":
        monkeypatch.setattr(os, "link", refuses)
    wanted = {"c": tensor(4)} if why == "other tensors" else tensors

    assert link_parts(tmp_path, "w", parts_of(wanted), file) is None
    assert [path.name for path in tmp_path.iterdir()] == ["w"]


def refuses(*paths: object) -> None:
    raise PermissionError
