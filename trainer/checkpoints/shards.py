"""Tensors in parts, written by some number of processes and read by any other number.

A file of parts is safetensors, named by the digest of its content, and flushed to disk. Its entries
give dtype and shape of every tensor, and for every part its place in the tensor (offset, shape),
the file, the first byte in it, and its digest. No data is returned without a comparison of its
digest, and no region that the parts do not cover. Source: ByteCheckpoint, arXiv 2407.20143, §3.2.

Digests protect against damage, not against an attacker: they are XXH3 of 128 bits, prefixed by
`xxh3:`, at a thirtieth of the CPU time of sha256 on a core that also trains. If a tensor's sha256
is known already, it is used, in hexadecimal.
"""

import hashlib
import os
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, combinations
from math import prod
from pathlib import Path

import numpy as np
import xxhash

from rollcall.schemas.atomic_files import sync_to_disk
from rollcall.schemas.errors import Refused, WeightsDiffer
from rollcall.schemas.uncached_files import BUFFER_BYTES, write_uncached
from rollcall.schemas.weights import LENGTH_BYTES, SIZE_BYTES, RawTensor, laid_out, safetensors_head

PREFIX = "xxh3:"


@dataclass(frozen=True, slots=True)
class TensorPart:
    """The part of a tensor that one process holds."""

    shape: tuple[int, ...]
    offset: tuple[int, ...]
    held: RawTensor


@dataclass(frozen=True, slots=True)
class Shard:
    """A part of a tensor in a file."""

    offset: tuple[int, ...]
    shape: tuple[int, ...]
    file: str
    begin: int
    """Its first byte in the file; its bytes follow in C order."""
    digest: str


@dataclass(frozen=True, slots=True)
class ShardedTensor:
    """A tensor and the places of its parts."""

    dtype: str
    shape: tuple[int, ...]
    shards: tuple[Shard, ...]


@dataclass(frozen=True, slots=True)
class PartsFile:
    """One file of parts."""

    name: str
    size_bytes: int
    head_sha256: str
    """The digest of its safetensors header."""
    tensors: Mapping[str, ShardedTensor]


def rows_of(rows: int, rank: int, world: int) -> range:
    """Return a rank's rows of a tensor: equal ranges, the last ones shorter, like FSDP2.

    Raises Refused for a rank outside the world.
    """
    if not 0 <= rank < world:
        msg = f"rank {rank} of a world of {world}; give a world of at least 1 and a rank below it"
        raise Refused(msg)
    stretch = -(-rows // world)
    return range(min(rank * stretch, rows), min((rank + 1) * stretch, rows))


def held_of(tensor: RawTensor, rank: int = 0, world: int = 1) -> RawTensor:
    """Return a rank's rows of a tensor; a scalar is returned whole."""
    if world == 1 or not tensor.shape:
        return tensor
    rows = rows_of(tensor.shape[0], rank, world)
    row = prod(tensor.shape[1:]) * SIZE_BYTES[tensor.dtype]
    data = tensor.data[rows.start * row : rows.stop * row]
    return RawTensor(tensor.dtype, (len(rows), *tensor.shape[1:]), data)


def part_of(tensor: RawTensor, rank: int = 0, world: int = 1) -> TensorPart | None:
    """Return the part of one rank; None if it has no rows. A scalar belongs to rank 0."""
    rows = rows_of(tensor.shape[0] if tensor.shape else 1, rank, world)
    if rank and not rows:
        return None
    offset = (rows.start, *(0 for _ in tensor.shape[1:])) if tensor.shape else ()
    return TensorPart(tensor.shape, offset, held_of(tensor, rank, world))


def parts_of(
    tensors: Mapping[str, RawTensor], rank: int = 0, world: int = 1
) -> dict[str, TensorPart]:
    """Return one rank's parts of the tensors."""
    parts = {name: part_of(tensor, rank, world) for name, tensor in tensors.items()}
    return {name: part for name, part in parts.items() if part is not None}


def write_parts(
    directory: Path,
    stem: str,
    parts: Mapping[str, TensorPart],
    known: Mapping[str, str] | None = None,
) -> PartsFile:
    """Write one file `<stem>-<digest>.safetensors`; it is durable when this returns.

    Each tensor is read once, for the file and for its digest unless that is known; on one core,
    since the others compute the next step meanwhile. Raises OSError.
    """
    tensors = {name: part.held for name, part in parts.items()}
    head = safetensors_head(tensors)
    hidden = _hidden(directory, stem)
    digests = dict(known or {})
    try:
        write_uncached(hidden, chain([head], _read_once(tensors, digests)))
        sync_to_disk(hidden)
        described = _described(stem, head, parts, digests)
        hidden.replace(directory / described.name)
    finally:
        hidden.unlink(missing_ok=True)
    return described


def link_parts(
    directory: Path,
    stem: str,
    parts: Mapping[str, TensorPart],
    file: Path,
    known: Mapping[str, str] | None = None,
) -> PartsFile | None:
    """Link a file that contains exactly these tensors under a new name, instead of writing.

    None if it contains others or cannot be linked; then the parts have to be written.
    """
    tensors = {name: part.held for name, part in parts.items()}
    head = safetensors_head(tensors)
    size_bytes = len(head) + sum(len(tensor.data) for tensor in tensors.values())
    hidden = _hidden(directory, stem)
    try:
        if file.stat().st_size != size_bytes or _head_at(file) != head:
            return None
        os.link(file, hidden)
        described = _described(stem, head, parts, known or digests_of(tensors))
        hidden.replace(directory / described.name)
    except OSError:
        return None
    finally:
        hidden.unlink(missing_ok=True)
    return described


def digests_of(tensors: Mapping[str, RawTensor]) -> dict[str, str]:
    """Return the digest of each tensor's bytes."""
    return {name: _digest(tensor.data) for name, tensor in tensors.items()}


def _digest(data: bytes | memoryview, like: str = PREFIX) -> str:
    """Return the digest of bytes, of the same kind as the digest `like`."""
    if like.startswith(PREFIX):
        return PREFIX + xxhash.xxh3_128_hexdigest(data)
    return hashlib.sha256(data).hexdigest()


def _read_once(tensors: Mapping[str, RawTensor], digests: dict[str, str]) -> Iterator[memoryview]:
    """Yield the bytes of a file in order; add missing digests on the way."""
    for name in laid_out(tensors):
        data, digest = memoryview(tensors[name].data), xxhash.xxh3_128()
        for begin in range(0, len(data), BUFFER_BYTES):
            piece = data[begin : begin + BUFFER_BYTES]
            yield piece
            if name not in digests:
                digest.update(piece)
        digests.setdefault(name, PREFIX + digest.hexdigest())


def _hidden(directory: Path, stem: str) -> Path:
    return directory / f".{stem}.{secrets.token_hex(4)}.tmp"


def _described(
    stem: str, head: bytes, parts: Mapping[str, TensorPart], digests: Mapping[str, str]
) -> PartsFile:
    """Describe a file of parts, named by its content."""
    order = laid_out({name: part.held for name, part in parts.items()})
    content = hashlib.sha256(head + "".join(digests[name] for name in order).encode())
    file, begin = f"{stem}-{content.hexdigest()[:16]}.safetensors", len(head)
    tensors = {}
    for name in order:
        part = parts[name]
        shard = Shard(part.offset, part.held.shape, file, begin, digests[name])
        tensors[name] = ShardedTensor(part.held.dtype, part.shape, (shard,))
        begin += len(part.held.data)
    return PartsFile(file, begin, hashlib.sha256(head).hexdigest(), tensors)


def merged(written: Iterable[Mapping[str, ShardedTensor]]) -> dict[str, ShardedTensor]:
    """Merge the tensors of all ranks. Raises WeightsDiffer for a mismatch or a missing part."""
    whole: dict[str, ShardedTensor] = {}
    for rank, tensors in enumerate(written):
        for name, tensor in tensors.items():
            known = whole.setdefault(name, replace(tensor, shards=()))
            if (known.dtype, known.shape) != (tensor.dtype, tensor.shape):
                msg = (
                    f"tensor {name!r} is {tensor.dtype} {tensor.shape} on rank {rank} and "
                    f"{known.dtype} {known.shape} on another; do all ranks train the same model?"
                )
                raise WeightsDiffer(msg)
            whole[name] = replace(known, shards=(*known.shards, *tensor.shards))
    for name, tensor in whole.items():
        covered = sum(prod(shard.shape) for shard in tensor.shards)
        twice = any(overlap(a, b.offset, b.shape) for a, b in combinations(tensor.shards, 2))
        if covered != prod(tensor.shape) or (twice and tensor.shape):
            raise WeightsDiffer(_uncovered(name, tensor))
    return dict(sorted(whole.items()))


def read_part(
    directory: Path, name: str, tensor: ShardedTensor, rank: int = 0, world: int = 1
) -> RawTensor:
    """Read one rank's rows of a tensor, from all shards that overlap them.

    Raises WeightsDiffer for damaged data, and OSError.
    """
    box: tuple[tuple[int, ...], tuple[int, ...]] = (), ()
    if tensor.shape:
        rows = rows_of(tensor.shape[0], rank, world)
        others = tensor.shape[1:]
        box = (rows.start, *(0 for _ in others)), (len(rows), *others)
    return _read_box(directory, name, tensor, *box)


def overlap(
    shard: Shard, offset: Sequence[int], shape: Sequence[int]
) -> tuple[tuple[slice, ...], tuple[slice, ...]] | None:
    """Return the overlap of a shard and a box, as slices of the shard and of the box, or None."""
    theirs, ours = [], []
    for at, long, wanted_at, wanted in zip(shard.offset, shard.shape, offset, shape, strict=True):
        first, last = max(at, wanted_at), min(at + long, wanted_at + wanted)
        if first >= last:
            return None
        theirs.append(slice(first - at, last - at))
        ours.append(slice(first - wanted_at, last - wanted_at))
    return tuple(theirs), tuple(ours)


def require_files(directory: Path, files: Mapping[str, tuple[int, str]]) -> None:
    """Raise WeightsDiffer if a file is missing, or its size or header differs."""
    for name, (size_bytes, head_sha256) in files.items():
        path = directory / name
        found = path.stat().st_size if path.is_file() else -1
        if found != size_bytes:
            is_there = f"holds {found:,} bytes" if found >= 0 else "is not there"
            msg = f"{path} {is_there}, but the manifest promises {size_bytes:,}"
            raise WeightsDiffer(msg)
        if hashlib.sha256(_head_at(path)).hexdigest() != head_sha256:
            msg = f"the header of {path} is not what the manifest promises; was it written over?"
            raise WeightsDiffer(msg)


def _read_box(
    directory: Path,
    name: str,
    tensor: ShardedTensor,
    offset: tuple[int, ...],
    shape: tuple[int, ...],
) -> RawTensor:
    size = SIZE_BYTES[tensor.dtype]
    covered = 0
    box = np.empty((*shape, size), np.uint8)
    for shard in tensor.shards:
        met = overlap(shard, offset, shape)
        if met is None:
            continue
        data = _bytes_of(directory, name, shard, size)
        if (shard.offset, shard.shape) == (offset, shape):
            return RawTensor(tensor.dtype, shape, data)
        theirs, ours = met
        box[ours] = np.frombuffer(data, np.uint8).reshape(*shard.shape, size)[theirs]
        covered += prod(each.stop - each.start for each in ours)
    if covered != prod(shape):
        raise WeightsDiffer(_uncovered(name, tensor))
    return RawTensor(tensor.dtype, shape, box.tobytes())


def _bytes_of(directory: Path, name: str, shard: Shard, size: int) -> bytes:
    with (directory / shard.file).open("rb") as file:
        file.seek(shard.begin)
        data = file.read(prod(shard.shape) * size)
    found = _digest(data, shard.digest)
    if found != shard.digest:
        msg = (
            f"tensor {name!r} has digest {found[:16]} in {directory / shard.file}, but the "
            f"manifest promises {shard.digest[:16]}; was the file cut short or written over?"
        )
        raise WeightsDiffer(msg)
    return data


def _uncovered(name: str, tensor: ShardedTensor) -> str:
    there = ", ".join(f"{shard.shape} at {shard.offset}" for shard in tensor.shards) or "none"
    return f"tensor {name!r} of shape {tensor.shape} has these parts: {there}; is a rank missing?"


def _head_at(path: Path) -> bytes:
    with path.open("rb") as file:
        size = file.read(LENGTH_BYTES)
        return size + file.read(min(int.from_bytes(size, "little"), path.stat().st_size))
