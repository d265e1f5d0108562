"""The word of a commit that says which records above it are finished too."""

import base64
import zlib

from consumers.loop.partition_progress import PartitionProgress
from consumers.loop.suspects import MARK_BYTES

METADATA_BYTES = 4095 - MARK_BYTES
"""What a role's word may take up of the broker's limit."""


def above_commit(progress: PartitionProgress) -> str:
    """The finished offsets above the commit as `1;<base64 of a compressed bitmap>`.

    Bit n stands for offset commit + n. Cut where it would not fit the broker's limit: what is left
    out is done once more after a restart.
    """
    bits = _finished(progress)
    while bits := bits.rstrip(b"\0"):
        word = "1;" + base64.b64encode(zlib.compress(bits, 9)).decode()
        if len(word) <= METADATA_BYTES:
            return word
        bits = bits[: len(bits) * 3 // 4]
    return "1;"


def _finished(progress: PartitionProgress) -> bytearray:
    """A bit for each offset from the commit on."""
    thinned = max(0, progress.thinned_to - progress.next_offset)
    last = progress.taken[-1].offset - progress.next_offset if progress.taken else 0
    bits = bytearray(b"\xff" * (thinned // 8) + bytes([(1 << thinned % 8) - 1]))
    bits.extend(bytes(max(0, last // 8 + 1 - len(bits))))
    for record in progress.taken:
        n = record.offset - progress.next_offset
        if record.finished():
            bits[n // 8] |= 1 << n % 8
        else:
            bits[n // 8] &= ~(1 << n % 8)
    return bits


def finished_above(metadata: str, commit: int) -> frozenset[int]:
    """Read `above_commit`; metadata that others wrote counts as none."""
    if not metadata.startswith("1;") or len(metadata) == len("1;"):
        return frozenset()
    try:
        bits = zlib.decompress(base64.b64decode(metadata[2:], validate=True))
    except (ValueError, zlib.error):
        return frozenset()
    return frozenset(commit + n for n in range(len(bits) * 8) if bits[n // 8] >> n % 8 & 1)
