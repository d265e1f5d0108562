"""What one rank writes of a checkpoint's tensors, and what it reads of them."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from schemas.messages import WeightsFile
from schemas.weights import RawTensor, read_weights
from trainer.learner_state import LearnerState
from trainer.manifest import require_written, tensors_of
from trainer.shards import (
    PartsFile,
    ShardedTensor,
    TensorPart,
    held_of,
    link_parts,
    parts_of,
    read_part,
    write_parts,
)

KINDS = ("weights", "optimiser", "rng")
OF_RANK = "@"
"""Between the name of a generator and the rank whose it is; rank 0 goes without."""


@dataclass(frozen=True, slots=True)
class StateParts:
    """What one rank holds of a learner's state, by kind."""

    rank: int
    version: int
    kinds: Mapping[str, Mapping[str, TensorPart]]


@dataclass(frozen=True, slots=True)
class PublishedFile:
    """What is known of a state's weights because they were published before."""

    path: Path | None = None
    """A file on this machine that holds them."""
    sha256s: Mapping[str, str] = field(default_factory=dict)
    """Of every tensor, whole."""

    def sha256s_of(self, parts: Mapping[str, TensorPart]) -> Mapping[str, str] | None:
        """Of these parts, where each of them is a whole tensor that is known."""
        known = all(part.held.shape == part.shape for part in parts.values())
        return self.sha256s if known and parts.keys() == self.sha256s.keys() else None


@dataclass(frozen=True, slots=True)
class RankFiles:
    """What one rank has written, by kind."""

    kinds: Mapping[str, PartsFile]


def parts_of_state(state: LearnerState, rank: int = 0, world: int = 1) -> StateParts:
    """What one rank writes of a state that all of them hold whole; generators are its own."""
    kinds = {kind: parts_of(getattr(state, kind), rank, world) for kind in ("weights", "optimiser")}
    mine = f"{OF_RANK}{rank}" if rank else ""
    generators = {f"{name}{mine}": each for name, each in state.rng.items()}
    return StateParts(rank, state.version, kinds | {"rng": parts_of(generators)})


def write_rank(
    root: str | Path, parts: StateParts, published: PublishedFile | None = None
) -> RankFiles:
    """Write what one rank has; it is part of a checkpoint once that is sealed. Raises OSError.

    A published file that holds these very weights is linked, so that they are written once; if they
    are damaged in it later, they are so here too.
    """
    published = published or PublishedFile()
    directory = directory_of(root, parts.version)
    directory.mkdir(parents=True, exist_ok=True)
    files = {}
    for kind, tensors in parts.kinds.items():
        stem, linked = f"{kind}-{parts.rank:05d}", None
        known = published.sha256s_of(tensors) if kind == "weights" else None
        if kind == "weights" and published.path is not None:
            linked = link_parts(directory, stem, tensors, published.path, known)
        if tensors:
            files[kind] = linked or write_parts(directory, stem, tensors, known)
    return RankFiles(files)


def directory_of(root: str | Path, version: int) -> Path:
    """Where a checkpoint lies."""
    return Path(root) / f"v{version:08d}"


def read_rank(
    directory: Path, body: Mapping[str, Any], rank: int, world: int
) -> dict[str, dict[str, RawTensor]]:
    """Weights, optimiser and generators, as far as they are one rank's."""
    if body["format"] == 1:
        whole = {kind: _read_whole(directory, body["shards"][kind]) for kind in KINDS}
        return {
            kind: tensors if kind == "rng" else _held(tensors, rank, world)
            for kind, tensors in whole.items()
        }
    require_written(directory, body["files"])
    kinds = {kind: tensors_of(body["tensors"][kind]) for kind in KINDS}
    kinds["rng"] = _own(kinds["rng"], rank)
    return {
        kind: {
            name: read_part(directory, name, tensor, *((rank, world) if kind != "rng" else ()))
            for name, tensor in tensors.items()
        }
        for kind, tensors in kinds.items()
    }


def _own(generators: Mapping[str, ShardedTensor], rank: int) -> dict[str, ShardedTensor]:
    """The states of one rank's generators; a rank that there was none of takes the first one's."""
    first = {name: each for name, each in generators.items() if OF_RANK not in name}
    return {name: generators.get(f"{name}{OF_RANK}{rank}", each) for name, each in first.items()}


def _read_whole(directory: Path, entry: Mapping[str, Any]) -> dict[str, RawTensor]:
    """A shard of format 1: all tensors of a kind in one weights file."""
    file = WeightsFile(**entry)
    return read_weights(dataclasses.replace(file, uri=str(directory / file.uri)))


def _held(tensors: Mapping[str, RawTensor], rank: int, world: int) -> dict[str, RawTensor]:
    return {name: held_of(tensor, rank, world) for name, tensor in tensors.items()}
