"""Weights in an object store, against moto's server: complete, or waited for."""

from collections.abc import Iterator

import fsspec
import pytest
from moto.server import ThreadedMotoServer

from rollcall.schemas.errors import Unavailable, WeightsDiffer, WeightsMissing
from rollcall.schemas.messages import PolicyVersion
from rollcall.schemas.published_weights import HeldWeights, Published, write_delta
from rollcall.schemas.weights import RawTensor, read_weights, write_weights
from tests.support.s3_store import s3_server

WHERE = "s3://bucket/run/weights"
Weights = dict[str, RawTensor]


def weights(first: int) -> Weights:
    return {"w": RawTensor("U8", (1000,), bytes([first]) + bytes(999))}


@pytest.fixture(scope="module")
def server() -> Iterator[ThreadedMotoServer]:
    with s3_server() as made:
        yield made


@pytest.mark.usefixtures("server")
def test_full_weights_and_deltas_are_read_from_a_bucket() -> None:
    base = Published(write_weights(WHERE, 1, weights(1), by_tensor=True))
    made = write_delta(WHERE, 2, base, weights(1), weights(2))
    assert made is not None

    newest = made.newest
    record = PolicyVersion(
        "p", 2, 1, "run", 1, newest.weights_digest, made.full, bytes(4), b"", made.deltas
    )
    assert HeldWeights().read(record) == weights(2)
    assert read_weights(base.full) == weights(1)
    there = fsspec.filesystem("s3").find(WHERE)
    assert sorted(name.rpartition(".")[2] for name in there) == ["delta", "safetensors"]


@pytest.mark.usefixtures("server")
def test_a_missing_and_a_truncated_object_are_distinguished() -> None:
    file = write_weights(WHERE, 5, weights(5), by_tensor=True)
    files = fsspec.filesystem("s3")
    files.pipe_file(file.uri, files.cat_file(file.uri)[:-1])
    files.invalidate_cache()
    with pytest.raises(WeightsDiffer, match="was the file truncated"):
        read_weights(file)
    files.rm(file.uri)

    with pytest.raises(WeightsMissing, match="no weights at"):
        read_weights(file)


def test_a_stopped_server_is_unavailable(server: ThreadedMotoServer) -> None:
    file = write_weights(WHERE, 7, weights(7), by_tensor=True)
    server.stop()

    with pytest.raises(Unavailable, match="cannot be read now"):
        read_weights(file)
    with pytest.raises(Unavailable, match="cannot be written"):
        write_weights(WHERE, 8, weights(8), by_tensor=True)
