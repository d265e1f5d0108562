"""The weights file of trainer and engines, read and written bit for bit.

The format is safetensors (a u64 header length, a JSON header, raw little-endian tensors). The
library writes the same bytes, but only to a local path or whole in memory, and takes twice the
memory to read. Here tensors are written to any file system one by one, and hashed on other cores
meanwhile. A file appears under its name only when it is complete. A reader checks the size, the
digest of the bytes and the digest of the weights before it returns a tensor. Equal weights have
equal digests of one kind, whatever the framework or the layout. Bits are compared: -0.0 and 0.0
differ, and a NaN equals itself.
"""

import hashlib
import os
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from io import BytesIO
from itertools import chain
from math import prod
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import orjson

from rollcall.schemas.errors import (
    BadBytes,
    LengthsDisagree,
    WeightsDiffer,
)
from rollcall.schemas.messages import WeightsFile
from rollcall.schemas.weights_store import opened, put

SIZE_BYTES = {
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2"), 1),
    **dict.fromkeys(("U16", "I16", "F16", "BF16"), 2),
    **dict.fromkeys(("U32", "I32", "F32"), 4),
    **dict.fromkeys(("U64", "I64", "F64"), 8),
}
LENGTH_BYTES = 8
"""The size of the field that holds the length of the header."""
PREFIX = "tensors:"
"""The prefix of a digest over digests of tensors; any other digest is one sha256 over everything,
which older readers know."""
MOST_CORES = 8
SMALL_BYTES = 1 << 20
"""Below this, threads cost more than they save."""
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RawTensor:
    """One tensor without a framework: C order, little-endian."""

    dtype: str
    """The name in safetensors: F32, BF16, ..."""
    shape: tuple[int, ...]
    data: bytes | memoryview
    """A memoryview shares memory with its owner, and changes with it."""

    def __post_init__(self) -> None:
        if self.dtype not in SIZE_BYTES:
            msg = f"tensor of dtype {self.dtype!r}; known are {', '.join(SIZE_BYTES)}"
            raise BadBytes(msg)
        expected = prod(self.shape) * SIZE_BYTES[self.dtype]
        if min(self.shape, default=0) < 0 or len(self.data) != expected:
            raise LengthsDisagree(type(self).__name__, data=len(self.data), shape=expected)


@dataclass(frozen=True, slots=True)
class TensorsFile:
    """A written file of tensors, with the digests of its content."""

    uri: str
    size_bytes: int
    head: bytes
    """The bytes before the first tensor."""
    sha256s: Mapping[str, str]
    """Digest of each tensor's bytes in the file, by name."""

    @property
    def sha256(self) -> str:
        """The digest that covers every byte of the file."""
        return over_file(self.head, self.sha256s.values())

    def as_version(self, version: int, tensors: Mapping[str, RawTensor]) -> WeightsFile:
        """Return the reference to it as the full weights of a version, given its tensors."""
        digest = over_tensors(tensors, self.sha256s)
        return WeightsFile(self.uri, self.sha256, self.size_bytes, digest, version)


def owned(tensors: Mapping[str, RawTensor]) -> dict[str, RawTensor]:
    """Copy tensors into memory of their own."""
    return {name: owned_one(tensor) for name, tensor in tensors.items()}


def owned_one(tensor: RawTensor) -> RawTensor:
    """Copy one tensor into memory of its own."""
    return RawTensor(tensor.dtype, tensor.shape, bytes(tensor.data))


def weights_digest(tensors: Mapping[str, RawTensor], like: str = "") -> str:
    """Return the digest of weights, of the same kind as `like`, so that they can be compared.

    It is over the digests of tensors if `like` is one of that kind. Otherwise it is the sha256 of
    (name, dtype, shape, bits) in order of names, each prefixed with its length.
    """
    if is_by_tensor(like):
        return over_tensors(tensors, sha256s_of(tensors))
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name]
        head = orjson.dumps([name, tensor.dtype, tensor.shape, len(tensor.data)])
        digest.update(len(head).to_bytes(8, "little") + head)
        digest.update(tensor.data)
    return digest.hexdigest()


def write_weights(
    directory_uri: str, version: int, tensors: Mapping[str, RawTensor], *, by_tensor: bool = False
) -> WeightsFile:
    """Write one file, named after version and content, and return the reference to it.

    On a local disk the file is durable on return, so that a power cut cannot remove announced
    weights. Writing the same weights again writes the same bytes to the same path. With `by_tensor`
    all digests are over digests of tensors, which takes half the work, on all cores; the reader
    must know that kind. Raises Unavailable.
    """
    if by_tensor:
        return write_tensors(directory_uri, stem_of(version), tensors).as_version(version, tensors)
    head = safetensors_head(tensors)
    with ThreadPoolExecutor(2) as pool:
        whole = pool.submit(_sha256, head, tensors, laid_out(tensors))
        weights = pool.submit(weights_digest, tensors)
        uri = _write(directory_uri, head, tensors, stem_of(version), whole.result)
    size_bytes = len(head) + sum(len(tensor.data) for tensor in tensors.values())
    return WeightsFile(uri, whole.result(), size_bytes, weights.result(), version)


def stem_of(version: int) -> str:
    """Return the common prefix of the names of a version's files."""
    return f"v{version:08d}"


def write_tensors(directory_uri: str, stem: str, tensors: Mapping[str, RawTensor]) -> TensorsFile:
    """Write `<stem>-<digest>.safetensors`, tensor by tensor, each hashed once; as `write_weights`.

    Raises Unavailable.
    """
    order, head = laid_out(tensors), safetensors_head(tensors)
    with ThreadPoolExecutor(1) as pool:
        hashing = pool.submit(sha256s_of, tensors)

        def digest() -> str:
            done = hashing.result()
            return over_file(head, (done[name] for name in order)).removeprefix(PREFIX)

        uri = _write(directory_uri, head, tensors, stem, digest)
    sha256s = hashing.result()
    size_bytes = len(head) + sum(len(tensor.data) for tensor in tensors.values())
    return TensorsFile(uri, size_bytes, head, {name: sha256s[name] for name in order})


def read_weights(file: WeightsFile) -> dict[str, RawTensor]:
    """Read the tensors of a file, and check its bytes and weights against `file`.

    Raises WeightsMissing, Unavailable, or WeightsDiffer.
    """
    with opened(file.uri) as (stream, size_bytes):
        if size_bytes != file.size_bytes:
            msg = f"hold {size_bytes} bytes, but the record promises {file.size_bytes}"
            raise _differ(file, f"{msg}; was the file truncated or overwritten?")
        try:
            head, tensors = _tensors_in(stream, size_bytes)
        except BadBytes as error:
            raise _differ(file, f"hold {error}; was the file overwritten?") from error
    found, digest = _digests(file, head, tensors)
    if found != file.sha256:
        msg = f"have sha256 {found[:16]}, but the record promises {file.sha256[:16]}"
        raise _differ(file, f"{msg}; was the file overwritten?")
    if digest != file.weights_digest:
        msg = f"have digest {digest[:16]}, but the record promises {file.weights_digest[:16]}"
        raise _differ(file, msg)
    return dict(sorted(tensors.items()))


def safetensors_head(tensors: Mapping[str, RawTensor]) -> bytes:
    """Return the length field and the header of a safetensors file of these tensors."""
    # Readers that load torch modules from a file look for this entry.
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name in laid_out(tensors):
        tensor = tensors[name]
        begin, end = end, end + len(tensor.data)
        header[name] = {"dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": (begin, end)}
    head = orjson.dumps(header)
    head += b" " * (-len(head) % 8)
    return len(head).to_bytes(LENGTH_BYTES, "little") + head


def laid_out(tensors: Mapping[str, RawTensor]) -> list[str]:
    """Return the order of tensors in a file: the widest elements first, for alignment."""
    return sorted(tensors, key=lambda name: (-SIZE_BYTES[tensors[name].dtype], name))


def to_safetensors(tensors: Mapping[str, RawTensor]) -> bytes:
    """Return a safetensors file as bytes."""
    data = (tensors[name].data for name in laid_out(tensors))
    return b"".join([safetensors_head(tensors), *data])


def from_safetensors(data: bytes) -> dict[str, RawTensor]:
    """Return the tensors of a safetensors file, in order of names."""
    _, tensors = _tensors_in(BytesIO(data), len(data))
    return dict(sorted(tensors.items()))


def from_uri(uri: str) -> dict[str, RawTensor]:
    """Read the tensors of a safetensors file; raise WeightsMissing, Unavailable and BadBytes."""
    with opened(uri) as (stream, size_bytes):
        _, tensors = _tensors_in(stream, size_bytes)
    return dict(sorted(tensors.items()))


def elements_in(path: Path) -> int:
    """Count the elements of a file's tensors by its header. Raises BadBytes, OSError."""
    with path.open("rb") as stream:
        try:
            _, header = _header_in(stream, path.stat().st_size)
            return sum(prod(tensor["shape"]) for tensor in header.values())
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            msg = f"{path} is no safetensors file: {error}"
            raise BadBytes(msg) from error


def _tensors_in(stream: BinaryIO, size_bytes: int) -> tuple[bytes, dict[str, RawTensor]]:
    """Read the header and the tensors of a file of `size_bytes`, in the order of the file."""
    try:
        head, header = _header_in(stream, size_bytes)
        rest = size_bytes - LENGTH_BYTES
        order = sorted(header, key=lambda name: (header[name]["data_offsets"], name))
        tensors, end = dict[str, RawTensor](), 0
        for name in order:
            first, last = header[name]["data_offsets"]
            bits = stream.read(last - first) if first == end and first <= last <= rest else b""
            end = last
            tensors[name] = RawTensor(
                str(header[name]["dtype"]), tuple(header[name]["shape"]), bits
            )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        msg = f"{size_bytes} bytes that are no safetensors file: {error}"
        raise BadBytes(msg) from error
    except LengthsDisagree as error:
        msg = f"a safetensors file of {size_bytes} bytes whose tensors overlap or end early"
        raise BadBytes(msg) from error
    if end != size_bytes - len(head):
        msg = f"a safetensors file of {size_bytes} bytes that has bytes after its last tensor"
        raise BadBytes(msg)
    return head, tensors


def _header_in(stream: BinaryIO, size_bytes: int) -> tuple[bytes, dict[str, Any]]:
    """Read the header of a file of `size_bytes`; return its bytes with the length, and its table.

    Raises ValueError, TypeError or AttributeError if it is invalid.
    """
    length = stream.read(LENGTH_BYTES)
    head = stream.read(min(int.from_bytes(length, "little"), max(0, size_bytes - len(length))))
    table = orjson.loads(head)
    table.pop("__metadata__", None)
    return length + head, table


def _digests(file: WeightsFile, head: bytes, tensors: Mapping[str, RawTensor]) -> tuple[str, str]:
    """Return the digests of a file's bytes and weights, of the same kinds as in its record."""
    if is_by_tensor(file.sha256):
        sha256s = sha256s_of(tensors)
        found = over_file(head, (sha256s[name] for name in tensors))
        return found, over_tensors(tensors, sha256s)
    with ThreadPoolExecutor(1) as pool:
        weights = pool.submit(weights_digest, tensors, file.weights_digest)
        return _sha256(head, tensors, tensors), weights.result()


def _sha256(head: bytes, tensors: Mapping[str, RawTensor], order: Iterable[str]) -> str:
    digest = hashlib.sha256(head)
    for name in order:
        digest.update(tensors[name].data)
    return digest.hexdigest()


def _write(
    directory_uri: str,
    head: bytes,
    tensors: Mapping[str, RawTensor],
    stem: str,
    sha256: Callable[[], str],
) -> str:
    pieces = chain([head], (tensors[name].data for name in laid_out(tensors)))
    return put(directory_uri, pieces, lambda: f"{stem}-{sha256()[:16]}.safetensors")


def _differ(file: WeightsFile, what: str) -> WeightsDiffer:
    return WeightsDiffer(f"weights of version {file.version} at {file.uri!r} {what}")


def is_by_tensor(digest: str) -> bool:
    """Return True if a digest is one over digests of tensors."""
    return digest.startswith(PREFIX)


def sha256s_of(tensors: Mapping[str, RawTensor]) -> dict[str, str]:
    """The sha256 of each tensor's bits, hexadecimal."""
    return each_of(tensors, lambda name: hashlib.sha256(tensors[name].data).hexdigest())


def each_of(tensors: Mapping[str, RawTensor], work: Callable[[str], T]) -> dict[str, T]:
    """Apply `work` to each tensor, the largest first, on all cores; return the results by name.

    `work` has to be of the kind that lets other threads run: digests, and numpy on large arrays.
    """
    sizes = {name: len(tensor.data) for name, tensor in tensors.items()}
    order = sorted(sizes, key=lambda name: -sizes[name])
    if sum(sizes.values()) < SMALL_BYTES:
        return {name: work(name) for name in order}
    with ThreadPoolExecutor(min(os.cpu_count() or 1, MOST_CORES)) as pool:
        return dict(zip(order, pool.map(work, order), strict=True))


def over_tensors(tensors: Mapping[str, RawTensor], sha256s: Mapping[str, str]) -> str:
    """The digest of weights whose tensors have these digests: a line of JSON for each, by name."""
    lines = (
        orjson.dumps([name, tensors[name].dtype, tensors[name].shape, sha256s[name]])
        for name in sorted(tensors)
    )
    return _over(lines)


def over_file(head: bytes, sha256s: Iterable[str]) -> str:
    """The digest of a file: its header, and the digests of its tensors as they lie in it."""
    return _over([hashlib.sha256(head).hexdigest().encode(), *(one.encode() for one in sha256s)])


def _over(lines: Iterable[bytes]) -> str:
    return PREFIX + hashlib.sha256(b"".join(line + b"\n" for line in lines)).hexdigest()
