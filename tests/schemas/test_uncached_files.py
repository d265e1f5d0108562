"""Files written past the page cache have exactly the given bytes."""

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import pytest

from rollcall.schemas.uncached_files import BUFFER_BYTES, write_uncached

SIZES = [0, 1, 511, 4096, BUFFER_BYTES - 1, BUFFER_BYTES, BUFFER_BYTES + 1, 3 * BUFFER_BYTES + 513]


@contextmanager
def largest_file(size_bytes: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.fixture(params=["disk", "memory"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A file of a disk, and one of a file system that is a page cache and nothing else."""
    path = tmp_path / "file"
    if request.param == "memory":
        if not Path("/dev/shm").is_dir():
            pytest.skip("no file system in memory is here")
        path = Path("/dev/shm") / f"rollcall-test-{os.getpid()}"
    yield path
    path.unlink(missing_ok=True)


@pytest.mark.parametrize("size", SIZES)
def test_data_of_any_length_is_written_unchanged(place: Path, size: int) -> None:
    data = os.urandom(size)

    write_uncached(place, [data])

    assert place.read_bytes() == data


def test_pieces_are_joined_at_any_boundary(place: Path) -> None:
    data = os.urandom(2 * BUFFER_BYTES + 77)
    ends = [0, 1, 1, 4096, BUFFER_BYTES - 3, BUFFER_BYTES + 5, len(data)]
    view = memoryview(data)

    write_uncached(place, (view[a:b] for a, b in pairwise(ends)))

    assert place.read_bytes() == data


def test_an_existing_file_is_not_overwritten(place: Path) -> None:
    place.write_bytes(b"before")

    with pytest.raises(FileExistsError):
        write_uncached(place, [b"after"])

    assert place.read_bytes() == b"before"


def test_reaching_the_file_size_limit_raises(place: Path) -> None:
    pieces = [os.urandom(BUFFER_BYTES)] * 3

    with largest_file(2 * BUFFER_BYTES), pytest.raises(OSError, match="File too large"):
        write_uncached(place, pieces)


def test_errors_of_the_source_are_propagated(place: Path) -> None:
    def torn() -> Iterator[bytes]:
        yield b"half"
        msg = "gone"
        raise KeyError(msg)

    with pytest.raises(KeyError, match="gone"):
        write_uncached(place, torn())
