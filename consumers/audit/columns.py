"""What has to be joined across topics, as columns of 64-bit words that are sorted once.

A record costs 8 bytes for the digest of what names it and 8 for its place, so that millions fit
into memory and a breach can still say where it is.
"""

from array import array
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint64]
TopicPlace = tuple[int, int]
"""Partition and offset, of a topic that is known."""
OFFSET_BITS = 40
PARTITION_BITS = 16
OFFSETS = (1 << OFFSET_BITS) - 1
PARTITIONS = (1 << PARTITION_BITS) - 1
WORD = (1 << 64) - 1


def place(partition: int, offset: int, mark: int = 0) -> int:
    """A partition and an offset in one word, with room for a small mark above them."""
    return (mark << PARTITION_BITS | partition) << OFFSET_BITS | offset


def place_of(partition: int, offset: int) -> int | None:
    """The word of a place that a record names; None for one that no topic can have."""
    if 0 <= partition <= PARTITIONS and 0 <= offset <= OFFSETS:
        return place(partition, offset)
    return None


def split(word: int) -> tuple[int, int]:
    """Partition and offset of a word; its mark is left out."""
    return word >> OFFSET_BITS & PARTITIONS, word & OFFSETS


def marks(words: Words) -> Words:
    """What stands above places."""
    return words >> np.uint64(OFFSET_BITS + PARTITION_BITS)


def word_of(value: bytes | memoryview) -> int:
    """Bytes in one word of this process; never 0, which stands for none."""
    return hash(value) & WORD or 1


def words(values: "Sequence[int] | array[int]") -> Words:
    """As numpy sees them."""
    return np.array(values, np.uint64)


def sort_together(*columns: "array[int]") -> list[Any]:
    """Rows in order of the first column, equal ones in the order they came; empties the columns."""
    order = np.argsort(_numbers(columns[0]), kind="stable")
    ordered = []
    for column in columns:
        ordered.append(_numbers(column)[order])
        del column[:]
    return ordered


def _numbers(column: "array[int]") -> NDArray[Any]:
    """A view: nothing is copied."""
    return np.frombuffer(column, f"u{column.itemsize}")


def firsts(keys: Words) -> NDArray[np.bool_]:
    """Which rows are the first of their key; the keys are sorted."""
    first = np.ones(len(keys), bool)
    first[1:] = keys[1:] != keys[:-1]
    return first


def find(keys: Words, wanted: Words) -> NDArray[np.int64]:
    """The first row of each wanted key among sorted ones; -1 where there is none."""
    if not len(keys):
        return np.full(len(wanted), -1, np.int64)
    at = np.searchsorted(keys, wanted)
    at[at == len(keys)] = 0
    return np.where(keys[at] == wanted, at, -1)


def find_one(keys: Words, wanted: int) -> int:
    """The first row of one key; -1 where there is none."""
    return int(find(keys, np.array([wanted], np.uint64))[0])
