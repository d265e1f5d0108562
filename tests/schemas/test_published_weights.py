"""A version is read completely from any available files, and never as a mixture of two."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from rollcall.schemas.errors import WeightsDiffer, WeightsMissing
from rollcall.schemas.messages import PolicyVersion
from rollcall.schemas.published_weights import HeldWeights, Published, write_delta
from rollcall.schemas.weights import RawTensor, write_weights

Weights = dict[str, RawTensor]


def weights(version: int) -> Weights:
    """Of 1,000 elements, a few of which are others in each version."""
    bits = np.arange(1000, dtype="<u2")
    bits[version::300] += 7 * version
    return {"w": RawTensor("BF16", (1000,), bits.tobytes())}


def record(published: Published) -> PolicyVersion:
    return PolicyVersion(
        "p", published.newest.version, 0, "run", 1, published.weights_digest, published.full,
        b"\0\0\0\0", b"", published.deltas,
    )  # fmt: skip


@pytest.fixture
def records(tmp_path: Path) -> list[PolicyVersion]:
    """Versions 0 to 3, of which the first is full."""
    made = [Published(write_weights(str(tmp_path), 0, weights(0), by_tensor=True))]
    for version in (1, 2, 3):
        next_ = write_delta(
            str(tmp_path), version, made[-1], weights(version - 1), weights(version)
        )
        assert next_ is not None
        made.append(next_)
    return [record(published) for published in made]


def path_of(version: PolicyVersion) -> Path:
    file = version.deltas[-1] if version.deltas else version.full
    return Path(file.uri.removeprefix("file://"))


@pytest.mark.parametrize("served", [[3], [0, 1, 2, 3], [1, 3], [2, 3], [0, 3, 2], [3, 0, 1]])
def test_every_path_to_a_version_gives_its_weights(
    records: list[PolicyVersion], served: Sequence[int]
) -> None:
    held = HeldWeights()

    for version in served:
        assert held.read(records[version]) == weights(version)


def test_a_server_that_holds_the_base_reads_only_the_delta(records: list[PolicyVersion]) -> None:
    held = HeldWeights()
    held.read(records[1])
    path_of(records[0]).unlink()
    path_of(records[1]).unlink()

    assert held.read(records[2]) == weights(2)
    assert held.read(records[3]) == weights(3)
    assert held.counts["from_full"] == 1


def test_a_server_that_forgot_its_weights_reads_them_again(
    records: list[PolicyVersion],
) -> None:
    held = HeldWeights()
    held.read(records[3])

    held.forget()

    assert held.read(records[3]) == weights(3)
    assert held.counts == {"from_full": 2}


def test_a_server_without_a_cache_reads_every_version_from_full_weights(
    records: list[PolicyVersion],
) -> None:
    held = HeldWeights(keeps=False)

    assert [held.read(records[number]) for number in (1, 2)] == [weights(1), weights(2)]

    assert held.counts["from_full"] == 2


@pytest.mark.parametrize("harm", ["missing", "cut", "flipped", "digest"])
def test_a_damaged_delta_is_replaced_by_full_weights_or_refused(
    records: list[PolicyVersion], harm: str
) -> None:
    # Given a server at version 2, and a damaged delta to 3
    held, last = HeldWeights(), records[3]
    held.read(records[2])
    path = path_of(last)
    whole = path.read_bytes()
    if harm == "missing":
        path.unlink()
    elif harm == "digest":
        wrong = replace(last.deltas[-1], weights_digest="tensors:0")
        last = replace(last, deltas=(*last.deltas[:-1], wrong), weights_digest="tensors:0")
    else:
        path.write_bytes(whole[:-1] if harm == "cut" else whole[:-1] + b"\xff")

    # When it reads 3, it raises once for each way that it tried
    with pytest.raises(WeightsMissing if harm == "missing" else WeightsDiffer):
        held.read(last)
    assert held.counts == {"from_full": 2, "delta_failed": 1}

    # Then it keeps 2, and reads 3 as soon as the file is correct
    path.write_bytes(whole)
    assert held.read(records[2]) == weights(2)
    assert held.read(records[3]) == weights(3)


def test_a_different_base_with_the_same_number_is_not_used(
    records: list[PolicyVersion], tmp_path: Path
) -> None:
    other = {"w": RawTensor("BF16", (1000,), bytes(2000))}
    before = Published(write_weights(str(tmp_path), 0, weights(0), by_tensor=True))
    strange = {"w": RawTensor("BF16", (1000,), weights(0)["w"].data[:-2] + b"ab")}
    delta = write_delta(str(tmp_path / "other"), 2, before, weights(0), strange)
    assert delta is not None
    held = HeldWeights()
    held.read(record(delta))

    assert held.read(records[3]) == weights(3)
    assert other != weights(3)


def test_a_full_version_among_deltas_serves_as_a_base(
    records: list[PolicyVersion], tmp_path: Path
) -> None:
    held = HeldWeights()
    held.read(records[3])
    full = Published(write_weights(str(tmp_path), 4, weights(4), by_tensor=True))
    assert held.read(record(full)) == weights(4)
    path_of(record(full)).unlink()
    after = write_delta(str(tmp_path), 5, full, weights(4), weights(5))
    assert after is not None

    assert held.read(record(after)) == weights(5)


def test_a_delta_chain_that_misses_the_version_is_refused(records: list[PolicyVersion]) -> None:
    last = records[3]
    for deltas in (last.deltas[1:], last.deltas[:2], last.deltas[::-1]):
        with pytest.raises(WeightsDiffer, match="are no chain to it"):
            HeldWeights().read(replace(last, deltas=deltas))


def test_a_dense_change_or_another_model_gives_no_delta(tmp_path: Path) -> None:
    base = Published(write_weights(str(tmp_path), 0, weights(0), by_tensor=True))
    dense = {"w": RawTensor("BF16", (1000,), bytes(2000))}
    renamed = {"v": weights(0)["w"]}

    assert write_delta(str(tmp_path), 1, base, weights(0), dense) is None
    assert write_delta(str(tmp_path), 1, base, weights(0), renamed) is None
