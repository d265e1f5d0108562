"""The parts of a checkpoint's tensors that one rank writes and reads."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rollcall.schemas.weights import RawTensor
from rollcall.trainer.checkpoints.learner_state import LearnerState
from rollcall.trainer.checkpoints.manifest import require_written, tensors_of
from rollcall.trainer.checkpoints.shards import (
    PartsFile,
    ShardedTensor,
    TensorPart,
    link_parts,
    parts_of,
    read_part,
    write_parts,
)

KINDS = ("weights", "optimiser", "rng")
OF_RANK = "@"
"""The separator of a generator's name and its rank; rank 0 has no suffix."""


@dataclass(frozen=True, slots=True)
class StateParts:
    """One rank's parts of a learner's state, by kind."""

    rank: int
    version: int
    kinds: Mapping[str, Mapping[str, TensorPart]]


@dataclass(frozen=True, slots=True)
class PublishedFile:
    """File and digests of a state's weights, known from their publication."""

    path: Path | None = None
    """A file on this machine that holds them."""
    sha256s: Mapping[str, str] = field(default_factory=dict)
    """Digests of every whole tensor."""

    def sha256s_of(self, parts: Mapping[str, TensorPart]) -> Mapping[str, str] | None:
        """Return the digests of parts, if all of them are whole tensors with a known digest."""
        known = all(part.held.shape == part.shape for part in parts.values())
        return self.sha256s if known and parts.keys() == self.sha256s.keys() else None


@dataclass(frozen=True, slots=True)
class RankFiles:
    """The files that one rank has written, by kind."""

    kinds: Mapping[str, PartsFile]


def parts_of_state(state: LearnerState, rank: int = 0, world: int = 1) -> StateParts:
    """Return one rank's parts of a state that all ranks hold whole, and its own generators."""
    kinds = {kind: parts_of(getattr(state, kind), rank, world) for kind in ("weights", "optimiser")}
    mine = f"{OF_RANK}{rank}" if rank else ""
    generators = {f"{name}{mine}": each for name, each in state.rng.items()}
    return StateParts(rank, state.version, kinds | {"rng": parts_of(generators)})


def write_rank(
    root: str | Path, parts: StateParts, published: PublishedFile | None = None
) -> RankFiles:
    """Write one rank's parts; `seal` makes them a part of a checkpoint. Raises OSError.

    A published file of the same weights is linked, so that they are written once; later damage of
    that file damages the checkpoint too.
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
    """Return the directory of a checkpoint."""
    return Path(root) / f"v{version:08d}"


def read_rank(
    directory: Path, body: Mapping[str, Any], rank: int, world: int
) -> dict[str, dict[str, RawTensor]]:
    """Read one rank's parts of weights, optimiser state and generators."""
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
    """Return the generator states of one rank; those of rank 0 for a rank without its own."""
    first = {name: each for name, each in generators.items() if OF_RANK not in name}
    return {name: generators.get(f"{name}{OF_RANK}{rank}", each) for name, each in first.items()}
