"""Token ids, log-probabilities and masks as little-endian bytes, and back.

Avro arrays cost 48 ns an int to write and 72 to read; packed bytes cost nothing to speak of.
"""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

IDS = np.dtype("<i4")
LOGPROBS = np.dtype("<f4")
MASK = np.dtype("u1")


def pack_ids(ids: Iterable[int]) -> bytes:
    """Token ids or versions to int32 little-endian."""
    return np.fromiter(ids, dtype=IDS).tobytes()


def pack_logprobs(logprobs: Iterable[float]) -> bytes:
    """Natural log-probabilities to float32 little-endian."""
    return np.fromiter(logprobs, dtype=LOGPROBS).tobytes()


def ids_of(packed: bytes) -> NDArray[np.int32]:
    """A read-only view, int32 [T]."""
    return np.frombuffer(packed, dtype=IDS)


def logprobs_of(packed: bytes) -> NDArray[np.float32]:
    """A read-only view, float32 [T]."""
    return np.frombuffer(packed, dtype=LOGPROBS)


def mask_of(packed: bytes) -> NDArray[np.uint8]:
    """A read-only view, uint8 [T]."""
    return np.frombuffer(packed, dtype=MASK)
