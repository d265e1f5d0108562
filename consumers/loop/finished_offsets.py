"""The commit metadata of work topics: the finished offsets above the commit."""

import base64
import zlib
from collections.abc import Iterable, Iterator, Set

from rollcall.consumers.loop.partition_progress import PartitionProgress
from rollcall.consumers.loop.poison_detection import MARK_BYTES
from rollcall.schemas.bounded import base64_bytes, inflated

METADATA_BYTES = 4095 - MARK_BYTES
"""The part of the broker's limit that a role's own metadata may take."""
BITMAP_BYTES = 1 << 18
"""Bits for two million offsets; no role has a tenth of that in flight or behind."""
NOTHING: frozenset[int] = frozenset()


class OffsetBits(Set[int]):
    """A set of offsets from a first one on, with a bit for each."""

    __slots__ = ("_bits", "_first")

    def __init__(self, first: int, bits: bytes) -> None:
        self._first = first
        self._bits = bits

    @classmethod
    def _from_iterable(cls, it: Iterable[int]) -> frozenset[int]:  # type: ignore[override]
        """Return unions and differences of this set as frozensets."""
        return frozenset(it)

    def __contains__(self, offset: object) -> bool:
        if not isinstance(offset, int):
            return False
        n = offset - self._first
        return 0 <= n < len(self._bits) * 8 and bool(self._bits[n // 8] >> n % 8 & 1)

    def __iter__(self) -> Iterator[int]:
        ours = range(self._first, self._first + len(self._bits) * 8)
        return (offset for offset in ours if offset in self)

    def __len__(self) -> int:
        return int.from_bytes(self._bits, "little").bit_count()


def above_commit(progress: PartitionProgress) -> str:
    """Return the finished offsets above the commit as `1;<base64 of a compressed bitmap>`.

    Bit n stands for offset commit + n. The bitmap is cut if it exceeds the broker's limit: records
    left out are processed once more after a restart.
    """
    bits = _finished(progress)[:BITMAP_BYTES]
    while bits := bits.rstrip(b"\0"):
        metadata = "1;" + base64.b64encode(zlib.compress(bits, 9)).decode()
        if len(metadata) <= METADATA_BYTES:
            return metadata
        bits = bits[: len(bits) * 3 // 4]
    return "1;"


def _finished(progress: PartitionProgress) -> bytearray:
    """Return a bitmap of the offsets from the commit on."""
    thinned = max(0, progress.thinned_to - progress.next_offset)
    last = progress.taken[-1].offset - progress.next_offset if progress.taken else 0
    # Thinned offsets are finished unless an unfinished record in `taken` clears its bit.
    bits = bytearray(b"\xff" * (thinned // 8) + bytes([(1 << thinned % 8) - 1]))
    bits.extend(bytes(max(0, last // 8 + 1 - len(bits))))
    for record in progress.taken:
        n = record.offset - progress.next_offset
        if record.finished():
            bits[n // 8] |= 1 << n % 8
        else:
            bits[n // 8] &= ~(1 << n % 8)
    return bits


def finished_above(metadata: str, commit: int) -> Set[int]:
    """Parse `above_commit`; metadata of other writers, or with too many offsets, counts as none."""
    read = read_finished(metadata, commit)
    return NOTHING if read is None else read


def read_finished(metadata: str, commit: int) -> Set[int] | None:
    """Like `finished_above`, but None for invalid metadata."""
    if not metadata or metadata == "1;":
        return NOTHING
    packed = base64_bytes(metadata[2:]) if metadata.startswith("1;") else None
    bits = None if packed is None else inflated(packed, BITMAP_BYTES)
    return None if bits is None else OffsetBits(commit, bits)
