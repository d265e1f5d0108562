"""The weights files of a run: cleaning up after a crash, and reading of announced versions.

They are in a directory or under any fsspec URL; servers read them by the URI of the record that
announces them. Their names contain version and content digest, and for a delta its base version:
`v00000010-1f...safetensors` is full, `v00000011-on-v00000010-9c...delta` is a delta.
`rollcall.trainer.weights.weights_needs` decides when files are deleted.
"""

from contextlib import suppress

from rollcall.schemas.errors import WeightsMissing, WireError
from rollcall.schemas.weight_deltas import followed
from rollcall.schemas.weights import RawTensor, from_uri
from rollcall.schemas.weights_store import StoredFile, content, listed, remove
from rollcall.trainer.weights.publication import widened
from rollcall.trainer.weights.weights_needs import KeptFile

SUFFIXES = ("safetensors", "delta")


def clear_temporary(where: str) -> None:
    """Remove the temporary files of an interrupted write; no record refers to them.

    Raises Unavailable, like all functions here.
    """
    for file in listed(where):
        if file.name.endswith(".tmp"):
            remove(where, file.name)


def clear_unannounced(where: str, newest: int) -> None:
    """Remove weights of versions above the newest, since their numbers will be reused."""
    for file in files_in(where):
        if file.version > newest:
            remove(where, file.name)


def of_version(where: str, version: int) -> dict[str, RawTensor] | None:
    """Return the weights of an announced version, in float32; None if they are gone.

    Deltas are applied to the last full weights.
    """
    published = published_of(where, version)
    return None if published is None else widened(published)


def published_of(where: str, version: int) -> dict[str, RawTensor] | None:
    """Return the weights of a version in the published precision; None if they are gone."""
    return _published(where, files_in(where), version)


def files_in(where: str) -> list[KeptFile]:
    """Return every weights file, the oldest version first."""
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
    """Parse a file's name; None for a file of another kind."""
    stem, _, suffix = file.name.rpartition(".")
    version, *rest = stem.split("-")
    base = rest[1].removeprefix("v") if rest[:1] == ["on"] and len(rest) == 3 else ""
    number, is_delta = version.removeprefix("v"), suffix == "delta"
    if suffix not in SUFFIXES or not number.isdecimal() or is_delta != base.isdecimal():
        return None
    return KeptFile(file.name, int(number), int(base or -1), file.size_bytes)
