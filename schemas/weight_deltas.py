"""Lossless deltas of weights: the elements whose bits changed, and nothing else.

A file is 16 bytes, little-endian (count u64, element size u16, flags u16, 4 of zero), then where
the elements lie, then what they are now. Flat places count elements through all tensors in order of
their names. They are u32, or u64 (flag 1), or what lies between one and the next in units of two
bytes (flag 2) or one (flag 4): a unit of all ones says so many elements and no place. The smallest
of these is written. Bits are compared, so -0.0 is a change and a NaN that stays is none; applying a
delta twice is as once. Source: AstraFlow's weight sync, and its header.
"""

import hashlib
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from rollcall.schemas.errors import WeightsDiffer
from rollcall.schemas.weights import SIZE_BYTES, RawTensor, each_of

HEADER = struct.Struct("<QHH4s")
WORD_BYTES = 8
WIDE, PAIRS, BYTES = 1, 2, 4
FORMS = {0: "<u4", WIDE: "<u8", PAIRS: "<u2", BYTES: "<u1"}
"""The dtypes in which places are written, by flags."""

Places = NDArray[np.int64]
Values = NDArray[np.unsignedinteger]


@dataclass(frozen=True, slots=True)
class Delta:
    """The changes of weights with `elements` elements."""

    elements: int
    places: Places
    """Ascending."""
    values: Values

    @property
    def density(self) -> float:
        """The share of elements that changed."""
        return len(self.places) / max(self.elements, 1)


def element_size(tensors: Mapping[str, RawTensor]) -> int:
    """Bytes of an element: of the smallest, where tensors differ; others count as several."""
    return min((SIZE_BYTES[tensor.dtype] for tensor in tensors.values()), default=1)


def are_alike(base: Mapping[str, RawTensor], now: Mapping[str, RawTensor]) -> bool:
    """Return True if names, dtypes and shapes are equal, so that there can be a delta."""
    shapes = [{n: (t.dtype, t.shape) for n, t in each.items()} for each in (base, now)]
    return shapes[0] == shapes[1]


def compared(
    base: Mapping[str, RawTensor], now: Mapping[str, RawTensor]
) -> tuple[Delta, dict[str, str]]:
    """Return the delta, and the sha256 of each current tensor: one pass, on all cores."""
    size = element_size(now)

    def look(name: str) -> tuple[Places, Values, str]:
        before, after = _bits(base[name].data, size), _bits(now[name].data, size)
        at = differing(before, after)
        return at, after[at], hashlib.sha256(now[name].data).hexdigest()

    seen = each_of(now, look)
    begins = dict(_begins(now, size))
    order = sorted(now)
    places = [seen[name][0] + begins[name] for name in order]
    values = [seen[name][1] for name in order]
    delta = Delta(
        _elements(now, size),
        np.concatenate(places, dtype=np.int64) if places else np.empty(0, np.int64),
        np.concatenate(values) if values else np.empty(0, _unsigned(size)),
    )
    return delta, {name: seen[name][2] for name in order}


def differing(before: Values, after: Values) -> Places:
    """Find the elements at which two arrays differ: first by eight bytes, then within those.

    A comparison takes as long for eight bytes as for two, and most are as they were.
    """
    each = WORD_BYTES // before.dtype.itemsize
    whole = len(before) // each * each
    words = np.flatnonzero(before[:whole].view(np.uint64) != after[:whole].view(np.uint64))
    near = (words[:, None] * each + np.arange(each)).reshape(-1)
    near = np.concatenate([near, np.arange(whole, len(before))])
    places: Places = near[before[near] != after[near]]
    return places


def followed(base: Mapping[str, RawTensor], data: bytes) -> dict[str, RawTensor]:
    """The weights after the delta in a file; as `applied`. Raises WeightsDiffer."""
    size = element_size(base)
    return applied(base, decoded(data, _elements(base, size), size))


def applied(base: Mapping[str, RawTensor], delta: Delta) -> dict[str, RawTensor]:
    """The weights after a delta; those of before stay as they are. Raises WeightsDiffer."""
    size = element_size(base)
    elements = _elements(base, size)
    if (elements, size) != (delta.elements, delta.values.dtype.itemsize):
        msg = (
            f"a delta of {delta.elements} elements of {delta.values.dtype.itemsize} bytes, but "
            f"these weights have {elements} of {size}; is it another model's?"
        )
        raise WeightsDiffer(msg)
    begins = dict(_begins(base, size))

    def change(name: str) -> RawTensor:
        tensor, begin = base[name], begins[name]
        ends = begin, begin + len(tensor.data) // size
        first, last = np.searchsorted(delta.places, ends)
        if first == last:
            return tensor
        bits = _bits(tensor.data, size).copy()
        bits[delta.places[first:last] - begin] = delta.values[first:last]
        bits.setflags(write=False)
        return RawTensor(tensor.dtype, tensor.shape, bits.view(np.uint8).data)

    changed = each_of(base, change)
    return {name: changed[name] for name in sorted(changed)}


def encoded(delta: Delta) -> bytes:
    """The smallest file of a delta."""
    count = len(delta.places)
    plain = 0 if delta.elements <= 1 << 32 else WIDE
    gaps = np.diff(delta.places, prepend=np.int64(-1)) - 1
    units = {
        form: count + int((gaps // _all_ones(form)).sum()) for form in (PAIRS, BYTES)
    } | {plain: count}  # fmt: skip
    flags = min(units, key=lambda form: units[form] * np.dtype(FORMS[form]).itemsize)
    if flags == plain:
        return encoded_plainly(delta)
    return _file(flags, _gap_coded(gaps, flags), delta.values)


def encoded_plainly(delta: Delta) -> bytes:
    """The file of a delta with its places written out."""
    flags = 0 if delta.elements <= 1 << 32 else WIDE
    return _file(flags, delta.places.astype(FORMS[flags]), delta.values)


def decoded(data: bytes, elements: int, size: int) -> Delta:
    """Read the delta of weights with this count and size of elements. Raises WeightsDiffer."""
    if len(data) < HEADER.size:
        msg = f"a delta of {len(data)} bytes; its header alone has {HEADER.size}"
        raise WeightsDiffer(msg)
    count, found, flags, zeros = HEADER.unpack_from(data)
    places_bytes = len(data) - HEADER.size - count * size
    if found != size or flags not in FORMS or any(zeros) or places_bytes < 0:
        msg = (
            f"a delta of {len(data)} bytes that says {count} elements of {found} bytes with flags "
            f"{flags}; these weights have {elements} of {size}, and flags are {list(FORMS)}"
        )
        raise WeightsDiffer(msg)
    form = np.dtype(FORMS[flags])
    if places_bytes % form.itemsize:
        msg = f"a delta of {len(data)} bytes that ends within a place; was it cut short?"
        raise WeightsDiffer(msg)
    units = np.frombuffer(data, form, places_bytes // form.itemsize, HEADER.size)
    places = _placed(units, flags) if flags in (PAIRS, BYTES) else units.astype(np.int64)
    ascending = len(places) == count and bool((np.diff(places) > 0).all())
    if not ascending or (count and not 0 <= places[0] <= places[-1] < elements):
        msg = f"a delta whose {len(places)} places are not {count} ascending ones below {elements}"
        raise WeightsDiffer(msg)
    values = np.frombuffer(data, _unsigned(size), count, HEADER.size + places_bytes)
    return Delta(elements, places, values)


def _file(flags: int, places: NDArray[np.unsignedinteger], values: Values) -> bytes:
    head = HEADER.pack(len(values), values.dtype.itemsize, flags, bytes(4))
    return b"".join([head, places.tobytes(), values.tobytes()])


def _gap_coded(gaps: Places, form: int) -> NDArray[np.unsignedinteger]:
    """Each gap as units of all ones, as often as they fit, and one unit of what is left."""
    leap = _all_ones(form)
    ends = np.cumsum(gaps // leap + 1)
    units = np.full(int(ends[-1]) if len(ends) else 0, leap, FORMS[form])
    units[ends - 1] = gaps % leap
    return units


def _placed(units: NDArray[np.unsignedinteger], form: int) -> Places:
    is_place = units != _all_ones(form)
    reached: Places = np.cumsum(units.astype(np.int64) + is_place)
    places: Places = reached[is_place] - 1
    return places


def _elements(tensors: Mapping[str, RawTensor], size: int) -> int:
    return sum(len(tensor.data) for tensor in tensors.values()) // size


def _all_ones(form: int) -> int:
    return int(np.iinfo(FORMS[form]).max)


def _unsigned(size: int) -> np.dtype[np.unsignedinteger]:
    return np.dtype(f"<u{size}")


def _bits(data: bytes | memoryview, size: int) -> Values:
    return np.frombuffer(data, _unsigned(size))


def _begins(tensors: Mapping[str, RawTensor], size: int) -> Iterator[tuple[str, int]]:
    """By name the flat place of each tensor's first element."""
    order = sorted(tensors)
    sizes = (len(tensors[name].data) // size for name in order)
    return zip(order, accumulate(sizes, initial=0), strict=False)
