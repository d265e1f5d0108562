"""A file system of fsspec, in memory, of which any call can be made to raise anything."""

from typing import Any, ClassVar

import fsspec
from fsspec.implementations.memory import MemoryFileSystem

CALLS = {
    "cat_file", "exists", "find", "info", "invalidate_cache", "isdir", "isfile", "ls", "makedirs",
    "mv", "open", "rm", "rm_file", "size",
}  # fmt: skip
"""What our stores call; what these call among themselves counts as one of them."""


class Faults:
    """Counts calls, and raises at the one that is named."""

    def __init__(self) -> None:
        self.calls = 0
        self.at: int | None = None
        self.error: BaseException = OSError("away")

    def call(self) -> None:
        self.calls += 1
        if self.at is not None and self.calls >= self.at:
            raise self.error


class FaultyStream:
    """A stream whose reads, writes and ends are calls as well."""

    def __init__(self, stream: Any, faults: Faults) -> None:
        self.stream = stream
        self.faults = faults

    def read(self, size: int = -1) -> Any:
        self.faults.call()
        return self.stream.read(size)

    def write(self, piece: bytes) -> Any:
        self.faults.call()
        return self.stream.write(piece)

    def __enter__(self) -> "FaultyStream":
        return self

    def __exit__(self, *_: object) -> None:
        self.stream.close()
        self.faults.call()


class FaultyFiles(MemoryFileSystem):
    """From the named call on everything raises, as where a network is gone."""

    protocol = "faulty"
    faults: ClassVar[Faults] = Faults()
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]
    cachable = False
    _inner: ClassVar[bool] = False

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        return MemoryFileSystem._strip_protocol(str(path).replace("faulty://", "memory://"))

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        if name not in CALLS:
            return found

        def call(*args: Any, **options: Any) -> Any:
            kind = type(self)
            if kind._inner:
                return found(*args, **options)
            kind.faults.call()
            kind._inner = True
            try:
                made = found(*args, **options)
            finally:
                kind._inner = False
            return FaultyStream(made, kind.faults) if name == "open" else made

        return call


def faulty_files() -> Faults:
    """Make `faulty://` known, with nothing in it; what is to be raised can be told."""
    fsspec.register_implementation("faulty", FaultyFiles, clobber=True)
    FaultyFiles.store.clear()
    FaultyFiles.pseudo_dirs[:] = [""]
    FaultyFiles.faults = Faults()
    return FaultyFiles.faults
