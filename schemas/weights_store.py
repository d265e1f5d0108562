"""Files of weights on any fsspec file system, and what is said where it is away."""

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
    """Write a file that comes in pieces, under the name that it is told in the end; its URI.

    On a local disk it is durable when this returns. Raises Unavailable.
    """
    with as_store_unavailable(f"weights cannot be written to {directory_uri!r}"):
        files, directory = _files(directory_uri)
        final = stream_durably(files, directory.rstrip("/"), pieces, name)
    return str(files.unstrip_protocol(final))


@contextmanager
def opened(uri: str) -> Iterator[tuple[BinaryIO, int]]:
    """A file to read from, and how many bytes it has. Raises WeightsMissing, Unavailable."""
    with as_store_unavailable(f"weights at {uri!r} cannot be read now"):
        try:
            files, path = _files(uri)
            with files.open(path, "rb") as stream:
                yield stream, int(files.size(path))
        except FileNotFoundError as error:
            msg = f"no weights at {uri!r}; wrong directory, not copied here yet, or deleted already"
            raise WeightsMissing(msg) from error


def content(uri: str) -> bytes:
    """All bytes of a file; raises WeightsMissing, Unavailable."""
    with opened(uri) as (stream, _):
        return stream.read()


def listed(directory_uri: str) -> list[StoredFile]:
    """The files of a folder, none where it is not there. Raises Unavailable."""
    with as_store_unavailable(f"weights in {directory_uri!r} cannot be listed now"):
        files, directory = _files(directory_uri)
        files.invalidate_cache()  # others write there too
        try:
            found = files.ls(directory, detail=True)
        except (FileNotFoundError, NotADirectoryError):
            return []
    entries = (each for each in found if each["type"] == "file")
    return [
        StoredFile(str(each["name"]).rpartition("/")[2], int(each["size"] or 0)) for each in entries
    ]


def remove(directory_uri: str, name: str) -> None:
    """Remove a file of a folder; what is gone already is none to mind. Raises Unavailable."""
    with as_store_unavailable(f"weights in {directory_uri!r} cannot be removed now"):
        files, directory = _files(directory_uri)
        try:
            files.rm_file(f"{directory.rstrip('/')}/{name}")
        except FileNotFoundError:
            return


def _files(uri: str) -> tuple[Any, str]:
    """The file system of a URI and the path there."""
    add_secrets_of_url(uri)
    files, path = fsspec.core.url_to_fs(uri)
    return files, str(path)
