"""The commit metadata of a journal partition: the low watermark from which a reader must begin.

`3;low;last;bulk_low;stragglers;requests;epoch;quota`. From `bulk_low` a reader needs all records.
Between `low` and `bulk_low` it needs only those of the stragglers, the few rollouts that are open
since then; they are identified by the offsets of their first events, as differences to the one
before, in base64. `last` is the last counted request offset as of `bulk_low`, and `requests` the id
of the requests' topic, since an offset is valid for one incarnation of a topic. `quota` is q if the
writer delayed first commands because of quotas: the next reader cannot know which. `epoch` is the
leader epoch of the last counted request. After the id of the requests' topic follow its earlier
ids, separated by commas. Version 2 has neither.
"""

import base64
from dataclasses import dataclass

from rollcall.schemas.bounded import LARGEST, base64_bytes, whole_number
from rollcall.schemas.messages import NO_EPOCH

VERSION = "3"
OLDER = "2"
SEPARATOR = ";"
SHIFTS = 63
"""The bits of the largest offset."""
MOST_STRAGGLERS = 300
"""The most stragglers whose offsets fit into the broker's limit of a
commit's metadata in any case."""


@dataclass(frozen=True, slots=True)
class Watermark:
    """The records that must be read to know all that was open at a commit."""

    bulk_low: int
    last: int | None = None
    stragglers: tuple[int, ...] = ()
    """First offsets below `bulk_low`, ascending."""
    requests: str = ""
    quota: bool = False
    epoch: int = NO_EPOCH
    left: tuple[str, ...] = ()
    """Earlier ids of the requests' topic, before it was recreated, the latest first."""

    @property
    def low(self) -> int:
        """The offset to start from."""
        return self.stragglers[0] if self.stragglers else self.bulk_low

    def write(self) -> str:
        last = "" if self.last is None else str(self.last)
        named = base64.b64encode(_packed(self.stragglers)).decode()
        quota = "q" if self.quota else ""
        epoch = "" if self.epoch == NO_EPOCH else str(self.epoch)
        requests = ",".join((self.requests, *self.left))
        words = VERSION, str(self.low), last, str(self.bulk_low), named, requests
        return SEPARATOR.join((*words, epoch, quota))


def read_watermark(metadata: str) -> Watermark | None:
    """Parse a commit's metadata; None for metadata of other writers."""
    words = metadata.split(SEPARATOR)
    if len(words) == 7 and words[0] == OLDER:
        words.insert(6, "")
    elif len(words) != 8 or words[0] != VERSION:
        return None
    _, low, last, bulk_low, named, ids, epoch, quota = words
    starts, counted = whole_number(low), whole_number(last)
    until, packed = whole_number(bulk_low), base64_bytes(named)
    stragglers = None if packed is None else _unpacked(packed)
    if starts is None or until is None or stragglers is None or (last and counted is None):
        return None
    leader = whole_number(epoch)
    known = NO_EPOCH if leader is None else leader
    requests, *left = ids.split(",")
    read = Watermark(until, counted, stragglers, requests, quota == "q", known, tuple(left))
    return read if read.low == starts and max(stragglers, default=0) <= until else None


def _packed(offsets: tuple[int, ...]) -> bytes:
    """Encode ascending offsets as differences, seven bits a byte, low ones first."""
    packed, before = bytearray(), 0
    for offset in offsets:
        left, before = offset - before, offset
        while left > 0x7F:
            packed.append(left & 0x7F | 0x80)
            left >>= 7
        packed.append(left)
    return bytes(packed)


def _unpacked(packed: bytes) -> tuple[int, ...] | None:
    """Decode them; None if the last number is incomplete or an offset is out of range."""
    offsets, at, value, shift = [], 0, 0, 0
    for byte in packed:
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            at += value
            offsets.append(at)
            value = shift = 0
        if shift > SHIFTS or at > LARGEST:
            return None
    return None if shift else tuple(offsets)
