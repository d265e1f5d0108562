"""A list of rows that is appended to and seldom read; older rows are compressed.

A rollout's journal holds the same text several times: in observations, in actions, and in the
requests of agents. Compressed together, the copies take almost no memory.
"""

import marshal
import zlib
from collections.abc import Iterable, Iterator
from typing import Any, Generic, TypeVar, cast

Row = TypeVar("Row", bound=tuple[Any, ...])

PACK_CHARS = 32 * 1024
"""The text that is collected before it is compressed: zlib's window, which a larger block would not
use and a smaller one would not fill."""
LEVEL = 1


class PackedRows(Generic[Row]):
    """Tuples of texts, bytes, numbers and None, in order."""

    __slots__ = ("_blocks", "_chars", "_latest", "_packed")

    def __init__(self, rows: Iterable[Row] = ()) -> None:
        self._blocks: list[bytes] = []
        self._packed = 0
        """The number of packed rows."""
        self._latest: list[Row] = []
        self._chars = 0
        for row in rows:
            self.append(row)

    def __len__(self) -> int:
        return self._packed + len(self._latest)

    def __iter__(self) -> Iterator[Row]:
        for block in self._blocks:
            yield from cast("list[Row]", marshal.loads(zlib.decompress(block)))
        yield from self._latest

    def append(self, row: Row) -> None:
        self._latest.append(row)
        for value in row:
            if type(value) is str:
                self._chars += len(value)
        if self._chars >= PACK_CHARS:
            # marshal is exact and fast, and its data never leave this process.
            self._blocks.append(zlib.compress(marshal.dumps(self._latest), LEVEL))
            self._packed += len(self._latest)
            self._latest, self._chars = [], 0
