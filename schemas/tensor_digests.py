"""One digest for each tensor, made on all cores, and one over these: what weights are known by.

A digest that begins with `tensors:` is such a one; any other is one sha256 over all of the weights,
as they were all known by before, and as they still are where somebody of then may read them.
"""

import hashlib
import os
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

import orjson

if TYPE_CHECKING:
    from rollcall.schemas.weights import RawTensor

T = TypeVar("T")
PREFIX = "tensors:"
MOST_CORES = 8
SMALL_BYTES = 1 << 20
"""Below this, threads cost more than they save."""


def is_by_tensor(digest: str) -> bool:
    """Return True if a digest is one over digests of tensors."""
    return digest.startswith(PREFIX)


def sha256s_of(tensors: Mapping[str, "RawTensor"]) -> dict[str, str]:
    """The sha256 of each tensor's bits, hexadecimal."""
    return each_of(tensors, lambda name: hashlib.sha256(tensors[name].data).hexdigest())


def each_of(tensors: Mapping[str, "RawTensor"], work: Callable[[str], T]) -> dict[str, T]:
    """Apply `work` to each tensor, the largest first, on all cores; return the results by name.

    `work` has to be of the kind that lets other threads run: digests, and numpy on large arrays.
    """
    sizes = {name: len(tensor.data) for name, tensor in tensors.items()}
    order = sorted(sizes, key=lambda name: -sizes[name])
    if sum(sizes.values()) < SMALL_BYTES:
        return {name: work(name) for name in order}
    with ThreadPoolExecutor(min(os.cpu_count() or 1, MOST_CORES)) as pool:
        return dict(zip(order, pool.map(work, order), strict=True))


def over_tensors(tensors: Mapping[str, "RawTensor"], sha256s: Mapping[str, str]) -> str:
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
