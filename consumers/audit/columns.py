"""Columns of 64-bit words for joins across topics, sorted once.

A record takes 8 bytes for the digest of its name and 8 for its place, so that millions fit
into memory and a breach can still be located.
"""

from array import array
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint64]
TopicPlace = tuple[int, int]
"""Partition and offset in a topic that is known."""
OFFSET_BITS = 40
PARTITION_BITS = 16
OFFSETS = (1 << OFFSET_BITS) - 1
PARTITIONS = (1 << PARTITION_BITS) - 1
WORD = (1 << 64) - 1


def pack_place(partition: int, offset: int, mark: int = 0) -> int:
    """Pack partition and offset into one word, with a small mark in the bits above them."""
    return (mark << PARTITION_BITS | partition) << OFFSET_BITS | offset


def pack_named_place(partition: int, offset: int) -> int | None:
    """Pack the place that a record names; return None for one that no topic can have."""
    if 0 <= partition <= PARTITIONS and 0 <= offset <= OFFSETS:
        return pack_place(partition, offset)
    return None


def unpack_place(word: int) -> tuple[int, int]:
    """Return partition and offset of a word, without its mark."""
    return word >> OFFSET_BITS & PARTITIONS, word & OFFSETS


def marks(words: Words) -> Words:
    """Return the marks of places."""
    return words >> np.uint64(OFFSET_BITS + PARTITION_BITS)


def word_of(value: bytes | memoryview) -> int:
    """Return the hash of bytes in this process as one word; never 0, which means none."""
    return hash(value) & WORD or 1


def to_words(values: "Sequence[int] | array[int]") -> Words:
    """Convert to a numpy array."""
    return np.array(values, np.uint64)


def sort_together(*columns: "array[int]") -> list[Any]:
    """Sort rows by the first column, stably; empty the given columns."""
    order = np.argsort(_numbers(columns[0]), kind="stable")
    ordered = []
    for column in columns:
        ordered.append(_numbers(column)[order])
        del column[:]
    return ordered


def _numbers(column: "array[int]") -> NDArray[Any]:
    """Return a view without a copy."""
    return np.frombuffer(column, f"u{column.itemsize}")


def firsts(keys: Words) -> NDArray[np.bool_]:
    """Flag the rows that are the first of their key; the keys are sorted."""
    first = np.ones(len(keys), bool)
    first[1:] = keys[1:] != keys[:-1]
    return first


def find(keys: Words, wanted: Words) -> NDArray[np.int64]:
    """Return the first row of each wanted key among sorted ones; -1 if there is none."""
    if not len(keys):
        return np.full(len(wanted), -1, np.int64)
    at = np.searchsorted(keys, wanted)
    at[at == len(keys)] = 0
    return np.where(keys[at] == wanted, at, -1)


def find_one(keys: Words, wanted: int) -> int:
    """Return the first row of one key; -1 if there is none."""
    return int(find(keys, np.array([wanted], np.uint64))[0])
