"""Files of weights on any fsspec file system, with errors that name the place."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, BinaryIO

import fsspec

from rollcall.schemas.atomic_files import stream_durably
from rollcall.schemas.errors import WeightsMissing
from rollcall.schemas.redaction import add_secrets_of_url
from rollcall.schemas.store_urls import as_store_unavailable


@dataclass(frozen=True, slots=True)
class StoredFile:
    """One file of a folder."""

    name: str
    size_bytes: int


def put(directory_uri: str, pieces: Iterable[bytes | memoryview], name: Callable[[], str]) -> str:
    """Write a file from pieces and return its URI; `name` is called after the last piece.

    On a local disk the file is durable on return. Raises Unavailable.
    """
    with as_store_unavailable(f"weights cannot be written to {directory_uri!r}"):
        files, directory = _files(directory_uri)
        final = stream_durably(files, directory.rstrip("/"), pieces, name)
    return str(files.unstrip_protocol(final))


@contextmanager
def opened(uri: str) -> Iterator[tuple[BinaryIO, int]]:
    """Open a file to read; yield it with its size. Raises WeightsMissing, Unavailable."""
    with as_store_unavailable(f"weights at {uri!r} cannot be read now"):
        try:
            files, path = _files(uri)
            with files.open(path, "rb") as stream:
                yield stream, int(files.size(path))
        except FileNotFoundError as error:
            msg = f"no weights at {uri!r}; wrong directory, not copied here yet, or deleted already"
            raise WeightsMissing(msg) from error


def content(uri: str) -> bytes:
    """Return all bytes of a file; raise WeightsMissing, Unavailable."""
    with opened(uri) as (stream, _):
        return stream.read()


def listed(directory_uri: str) -> list[StoredFile]:
    """Return the files of a folder; none if it does not exist. Raises Unavailable."""
    with as_store_unavailable(f"weights in {directory_uri!r} cannot be listed now"):
        files, directory = _files(directory_uri)
        files.invalidate_cache()  # other processes write there too
        try:
            found = files.ls(directory, detail=True)
        except (FileNotFoundError, NotADirectoryError):
            return []
    entries = (each for each in found if each["type"] == "file")
    return [
        StoredFile(str(each["name"]).rpartition("/")[2], int(each["size"] or 0)) for each in entries
    ]


def remove(directory_uri: str, name: str) -> None:
    """Remove a file of a folder, if it exists. Raises Unavailable."""
    with as_store_unavailable(f"weights in {directory_uri!r} cannot be removed now"):
        files, directory = _files(directory_uri)
        try:
            files.rm_file(f"{directory.rstrip('/')}/{name}")
        except FileNotFoundError:
            return


def _files(uri: str) -> tuple[Any, str]:
    """Return the file system of a URI, and the path on it."""
    add_secrets_of_url(uri)
    files, path = fsspec.core.url_to_fs(uri)
    return files, str(path)
