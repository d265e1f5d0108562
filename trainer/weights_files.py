"""The weights files of a run: what a crash left is cleared, what is old goes, the rest is read.

Servers read them by the URI of the record that announces them. Their names say version and content,
and of a delta the version that it was made from: `v00000010-1f...safetensors` is full,
`v00000011-on-v00000010-9c...delta` is what changed.
"""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from schemas.errors import WireError
from schemas.weight_deltas import followed
from schemas.weights import RawTensor, from_file
from trainer.publication import widened

KEEP = 16
SUFFIXES = (".safetensors", ".delta")


def clear_temporary(directory: Path) -> None:
    """Remove what a crash in the middle of writing weights has left; nobody refers to it."""
    for path in directory.glob("*.tmp"):
        path.unlink(missing_ok=True)


def clear_unannounced(directory: Path, newest: int) -> None:
    """Remove weights of versions above the newest: their numbers will be used for others."""
    for path, version, _ in files_in(directory):
        if version > newest:
            path.unlink(missing_ok=True)


def of_version(directory: Path, version: int) -> dict[str, RawTensor] | None:
    """The weights of a version that was announced from here, in float32; None where they are gone.

    They are made of the last full ones and what changed since, where they are published so.
    """
    published = published_of(directory, version)
    return None if published is None else widened(published)


def published_of(directory: Path, version: int) -> dict[str, RawTensor] | None:
    """The same as servers are given them."""
    for path, _, base in sorted(each for each in files_in(directory) if each[1] == version):
        with suppress(OSError, WireError):  # gone meanwhile, or torn
            if base < 0:
                return from_file(path)
            before = published_of(directory, base) if base < version else None
            if before is not None:
                return followed(before, path.read_bytes())
    return None


def prune(directory: Path, awaited: Iterable[int]) -> None:
    """Delete all but the newest files, what is awaited, and what these are made from."""
    there = sorted(files_in(directory))
    bases = {version: base for _, version, base in there}
    staying, wanted = set[int](), [*awaited, *(version for _, version, _ in there[-KEEP:])]
    while wanted:
        version = wanted.pop()
        if version not in staying:
            staying.add(version)
            wanted.append(bases.get(version, -1))
    for path, version, _ in there:
        if version not in staying:
            path.unlink(missing_ok=True)


def files_in(directory: Path) -> Iterator[tuple[Path, int, int]]:
    """Each weights file with its version and the one that it was made from, -1 for full ones."""
    for path in directory.glob("v*"):
        version, *rest = path.stem.split("-")
        base = rest[1].removeprefix("v") if rest[:1] == ["on"] and len(rest) == 3 else ""
        number, is_delta = version.removeprefix("v"), path.suffix == ".delta"
        if path.suffix in SUFFIXES and number.isdecimal() and is_delta == base.isdecimal():
            yield path, int(number), int(base or -1)
