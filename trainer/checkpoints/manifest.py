"""The manifest of a checkpoint: JSON with a digest of itself, and the encoding of its values.

Unused values are left out.
"""

import base64
import dataclasses
import hashlib
import secrets
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import orjson

from rollcall.schemas.atomic_files import appear_durably
from rollcall.schemas.errors import WeightsDiffer
from rollcall.schemas.messages import Consumed
from rollcall.trainer.checkpoints.shards import PartsFile, Shard, ShardedTensor, require_files
from rollcall.trainer.curation.drawn_groups import LedgerState
from rollcall.trainer.curation.replay import ReplayState

MANIFEST = "manifest.json"


def read_body(directory: Path) -> dict[str, Any]:
    """Read the manifest of a checkpoint. Raises WeightsDiffer, FileNotFoundError, ValueError.

    A file that is not a manifest at all raises ValueError, KeyError or TypeError.
    """
    manifest = orjson.loads((directory / MANIFEST).read_bytes())
    body: dict[str, Any] = manifest["body"]
    sha256 = _digest(body)
    if sha256 != manifest["sha256"]:
        msg = (
            f"{directory / MANIFEST} has sha256 {sha256[:16]}, but it says that it has "
            f"{str(manifest['sha256'])[:16]}; was it cut short or written over?"
        )
        raise WeightsDiffer(msg)
    return body


def write_body(directory: Path, body: Mapping[str, Any]) -> None:
    """Write or replace the manifest; it is durable when this returns."""
    hidden = directory / f".{MANIFEST}.{secrets.token_hex(4)}.tmp"
    try:
        hidden.write_bytes(orjson.dumps({"sha256": _digest(body), "body": body}))
        appear_durably(hidden, directory / MANIFEST)
    finally:
        hidden.unlink(missing_ok=True)


def written_files(files: Iterable[PartsFile]) -> dict[str, tuple[int, str]]:
    """Return by name the size of each file of tensors, and the digest of its header."""
    return {file.name: (file.size_bytes, file.head_sha256) for file in files}


def require_written(directory: Path, files: Mapping[str, Any]) -> None:
    """Raise WeightsDiffer if a file is not as it was written."""
    require_files(directory, {name: (size, head) for name, (size, head) in files.items()})


def written_tensors(tensors: Mapping[str, ShardedTensor]) -> dict[str, Any]:
    """Return tensors as plain values."""
    return {name: dataclasses.asdict(tensor) for name, tensor in tensors.items()}


def tensors_of(written: Mapping[str, Any]) -> dict[str, ShardedTensor]:
    """Read tensors from plain values."""
    return {
        name: ShardedTensor(
            tensor["dtype"],
            tuple(tensor["shape"]),
            tuple(
                Shard(
                    tuple(shard["offset"]),
                    tuple(shard["shape"]),
                    shard["file"],
                    shard["begin"],
                    shard["digest"],
                )
                for shard in tensor["shards"]
            ),
        )
        for name, tensor in written.items()
    }


def written_ledger(book: LedgerState) -> dict[str, Any]:
    """Return a book as plain values; unused fields are left out."""
    written = dataclasses.asdict(book) | {"ended": base64.b64encode(book.ended).decode()}
    for key in ("won", "sizes", "begun", "continued"):
        if not written[key]:
            del written[key]
    return written


def ledger_of(written: Mapping[str, Any]) -> LedgerState:
    """Read a book from plain values."""
    return LedgerState(
        **{
            **written,
            "ended": base64.b64decode(written["ended"]),
            "left": tuple(written["left"]),
            "won": tuple(written.get("won", ())),
            "continued": tuple(map(tuple, written.get("continued", ()))),
            "asked": marks_of(written["asked"]),
            "sizes": tuple((draw, size) for draw, size in written.get("sizes", ())),
            "begun": tuple((draw, version) for draw, version in written.get("begun", ())),
        }
    )


def replay_of(written: Mapping[str, Any]) -> ReplayState:
    """Read the replay state from plain values."""
    return ReplayState(
        tuple(
            (uses, tuple((partition, offset) for partition, offset in places))
            for uses, places in written.get("groups", ())
        ),
        tuple((uses, (place[0], place[1])) for uses, place in written.get("successes", ())),
        tuple(written.get("recorded", ())),
    )


def marks_of(written: Iterable[Mapping[str, Any]]) -> tuple[Consumed, ...]:
    """Read consumed positions from plain values."""
    return tuple(Consumed(**{**mark, "above": tuple(mark["above"])}) for mark in written)


def _digest(body: Mapping[str, Any]) -> str:
    return hashlib.sha256(orjson.dumps(body)).hexdigest()
