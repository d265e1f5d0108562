"""The weights file of trainer and engines: what is read is what was written, bit for bit.

The format is safetensors (a u64 header length, a JSON header, raw little-endian tensors), written
and read here in plain Python: no framework, and none of its interfaces that change. A file appears
under its name whole or not at all, and a reader checks size, digest of the bytes and digest of the
weights before it hands out one tensor. Two runs, two frameworks or two layouts with equal weights
have equal `weights_digest`; -0.0 and 0.0 differ, a NaN equals itself: bits are compared.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import fsspec
import orjson

from schemas.errors import (
    BadBytes,
    LengthsDisagree,
    Unavailable,
    WeightsDiffer,
    WeightsMissing,
    WireError,
)
from schemas.messages import WeightsFile
from schemas.whole_files import put_durably

SIZE_BYTES = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1,
    "U16": 2, "I16": 2, "F16": 2, "BF16": 2,
    "U32": 4, "I32": 4, "F32": 4,
    "U64": 8, "I64": 8, "F64": 8,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class RawTensor:
    """One tensor without a framework: C order, little-endian."""

    dtype: str
    """As safetensors spells it: F32, BF16, ..."""
    shape: tuple[int, ...]
    data: bytes

    def __post_init__(self) -> None:
        if self.dtype not in SIZE_BYTES:
            msg = f"tensor of dtype {self.dtype!r}; known are {', '.join(SIZE_BYTES)}"
            raise BadBytes(msg)
        expected = prod(self.shape) * SIZE_BYTES[self.dtype]
        if min(self.shape, default=0) < 0 or len(self.data) != expected:
            raise LengthsDisagree(type(self).__name__, data=len(self.data), shape=expected)


def weights_digest(tensors: Mapping[str, RawTensor]) -> str:
    """sha256 over (name, dtype, shape, bits) in order of names, each set off by its length."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name]
        head = orjson.dumps([name, tensor.dtype, tensor.shape, len(tensor.data)])
        digest.update(len(head).to_bytes(8, "little") + head)
        digest.update(tensor.data)
    return digest.hexdigest()


def write_weights(
    directory_uri: str, version: int, tensors: Mapping[str, RawTensor], base_version: int = -1
) -> WeightsFile:
    """Write one file, named after version and content, and return the reference to it.

    On a local disk the file is durable when this returns, so that nothing is announced that a power
    cut takes back. Writing the same weights again puts the same bytes in the same place. Raises
    Unavailable.
    """
    data = to_safetensors(tensors)
    sha256 = hashlib.sha256(data).hexdigest()
    try:
        files, directory = fsspec.core.url_to_fs(directory_uri)
        final = f"{directory.rstrip('/')}/v{version:08d}-{sha256[:16]}.safetensors"
        put_durably(files, final, data)
    except (OSError, ValueError, ImportError) as error:
        msg = f"weights of version {version} cannot be written to {directory_uri!r}: {error}"
        raise Unavailable(msg) from error
    uri = str(files.unstrip_protocol(final))
    return WeightsFile(uri, sha256, len(data), weights_digest(tensors), version, base_version)


def read_weights(file: WeightsFile) -> dict[str, RawTensor]:
    """The tensors of a file, after its bytes and its weights have been checked against `file`."""
    data = _bytes_at(file.uri)
    found = hashlib.sha256(data).hexdigest()
    if (len(data), found) != (file.size_bytes, file.sha256):
        msg = (
            f"weights of version {file.version} at {file.uri!r} hold {len(data)} bytes of sha256 "
            f"{found[:16]}, but the record promises {file.size_bytes} of {file.sha256[:16]}; "
            "was the file cut short or written over?"
        )
        raise WeightsDiffer(msg)
    tensors = from_safetensors(data)
    if weights_digest(tensors) != file.weights_digest:
        msg = (
            f"weights of version {file.version} at {file.uri!r} have digest "
            f"{weights_digest(tensors)[:16]}, but the record promises {file.weights_digest[:16]}"
        )
        raise WeightsDiffer(msg)
    return tensors


def is_whole(file: WeightsFile) -> bool:
    """Whether what a record promises is there and can be read."""
    try:
        read_weights(file)
    except (Unavailable, WireError):
        return False
    return True


def to_safetensors(tensors: Mapping[str, RawTensor]) -> bytes:
    """One safetensors file; the widest elements first, so that every tensor stays aligned."""
    order = sorted(tensors, key=lambda name: (-SIZE_BYTES[tensors[name].dtype], name))
    # Readers that build torch modules from a file look for this entry.
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name in order:
        tensor = tensors[name]
        begin, end = end, end + len(tensor.data)
        header[name] = {
            "dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": (begin, end)
        }  # fmt: skip
    head = orjson.dumps(header)
    head += b" " * (-len(head) % 8)
    return b"".join([len(head).to_bytes(8, "little"), head, *(tensors[n].data for n in order)])


def from_safetensors(data: bytes) -> dict[str, RawTensor]:
    """The tensors of one safetensors file, in order of names."""
    size = int.from_bytes(data[:8], "little")
    begin = 8 + size
    try:
        header = orjson.loads(data[8:begin])
        header.pop("__metadata__", None)
        tensors = {name: _tensor(data, begin, header[name]) for name in sorted(header)}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        msg = f"{len(data)} bytes that are no safetensors file: {error}"
        raise BadBytes(msg) from error
    if sum(len(tensor.data) for tensor in tensors.values()) != len(data) - begin:
        msg = f"a safetensors file of {len(data)} bytes whose tensors overlap or leave bytes over"
        raise BadBytes(msg)
    return tensors


def _tensor(data: bytes, begin: int, entry: dict[str, Any]) -> RawTensor:
    first, last = entry["data_offsets"]
    bits = data[begin + first : begin + last] if 0 <= first <= last else b""
    return RawTensor(str(entry["dtype"]), tuple(entry["shape"]), bits)


def _bytes_at(uri: str) -> bytes:
    try:
        files, path = fsspec.core.url_to_fs(uri)
        return bytes(files.cat_file(path))
    except FileNotFoundError as error:
        msg = f"no weights at {uri!r}; wrong directory, not copied here yet, or deleted already"
        raise WeightsMissing(msg) from error
    except (OSError, ValueError, ImportError) as error:
        msg = f"weights at {uri!r} cannot be read now: {error}"
        raise Unavailable(msg) from error
