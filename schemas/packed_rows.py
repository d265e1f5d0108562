"""Rows that only grow in number and are seldom read again: the older ones lie compressed.

What a rollout has seen stands in its journal several times over, in observations, in actions and in
what agents send back. Next to one another, compressed, the copies cost next to nothing.
"""

import marshal
import zlib
from collections.abc import Iterable, Iterator
from typing import Any, Generic, TypeVar, cast

Row = TypeVar("Row", bound=tuple[Any, ...])

PACK_CHARS = 32 * 1024
"""So much text lies as it is. Less would compress worse, and zlib looks no further back."""
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
            # As the interpreter writes constants: exact, quick, and it never leaves this process.
            self._blocks.append(zlib.compress(marshal.dumps(self._latest), LEVEL))
            self._packed += len(self._latest)
            self._latest, self._chars = [], 0
