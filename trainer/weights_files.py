"""The weights files of a run: what a crash left is cleared, and what was announced is read.

They lie in a directory or under any fsspec URL; servers read them by the URI of the record that
announces them. Their names say version and content, and of a delta the version that it was made
from: `v00000010-1f...safetensors` is full, `v00000011-on-v00000010-9c...delta` is what changed.
What goes when is said in `trainer.weights_needs`.
"""

from contextlib import suppress

from schemas.errors import WeightsMissing, WireError
from schemas.weight_deltas import followed
from schemas.weights import RawTensor, from_uri
from schemas.weights_store import StoredFile, content, listed, remove
from trainer.publication import widened
from trainer.weights_needs import KeptFile

SUFFIXES = ("safetensors", "delta")


def clear_temporary(where: str) -> None:
    """Remove what a crash in the middle of writing weights has left; nobody refers to it.

    Raises Unavailable, as all here do that say nothing else.
    """
    for file in listed(where):
        if file.name.endswith(".tmp"):
            remove(where, file.name)


def clear_unannounced(where: str, newest: int) -> None:
    """Remove weights of versions above the newest: their numbers will be used for others."""
    for file in files_in(where):
        if file.version > newest:
            remove(where, file.name)


def of_version(where: str, version: int) -> dict[str, RawTensor] | None:
    """The weights of a version that was announced from here, in float32; None where they are gone.

    They are made of the last full ones and what changed since, where they are published so.
    """
    published = published_of(where, version)
    return None if published is None else widened(published)


def published_of(where: str, version: int) -> dict[str, RawTensor] | None:
    """The same as servers are given them."""
    return _published(where, files_in(where), version)


def files_in(where: str) -> list[KeptFile]:
    """Every weights file, the oldest version first."""
    files = [kept for file in listed(where) if (kept := _named(file)) is not None]
    return sorted(files, key=lambda file: (file.version, file.name))


def _published(where: str, files: list[KeptFile], version: int) -> dict[str, RawTensor] | None:
    for file in (each for each in files if each.version == version):
        with suppress(WeightsMissing, WireError):  # gone meanwhile, or torn
            if file.base < 0:
                return from_uri(f"{where}/{file.name}")
            before = _published(where, files, file.base) if file.base < version else None
            if before is not None:
                return followed(before, content(f"{where}/{file.name}"))
    return None


def _named(file: StoredFile) -> KeptFile | None:
    """What the name says; None for a file of another kind."""
    stem, _, suffix = file.name.rpartition(".")
    version, *rest = stem.split("-")
    base = rest[1].removeprefix("v") if rest[:1] == ["on"] and len(rest) == 3 else ""
    number, is_delta = version.removeprefix("v"), suffix == "delta"
    if suffix not in SUFFIXES or not number.isdecimal() or is_delta != base.isdecimal():
        return None
    return KeptFile(file.name, int(number), int(base or -1), file.size_bytes)
