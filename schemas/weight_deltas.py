"""Lossless deltas of weights: the places and new values of the elements whose bits changed.

A file has a header of 16 bytes, little-endian (count u64, element size u16, flags u16, 4 zero
bytes), then the places, then the new values. A place is the index of an element in all tensors,
concatenated in order of their names. Places are written in the smallest of these forms: u32, u64
(flag 1), or gaps between places in units of two bytes (flag 2) or one byte (flag 4), where a unit
of all ones adds its value to the gap. Bits are compared: 0.0 to -0.0 is a change, a NaN that stays
is not. Applying a delta twice gives the same as once. Source: AstraFlow's weight sync.
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
"""The dtype of places, by flags."""

Places = NDArray[np.int64]
Values = NDArray[np.unsignedinteger]


@dataclass(frozen=True, slots=True)
class Delta:
    """Changes of weights that have `elements` elements."""

    elements: int
    places: Places
    """In ascending order."""
    values: Values

    @property
    def density(self) -> float:
        """The share of elements that changed."""
        return len(self.places) / max(self.elements, 1)


def element_size(tensors: Mapping[str, RawTensor]) -> int:
    """Return the size of the smallest element in bytes; larger elements count as several."""
    return min((SIZE_BYTES[tensor.dtype] for tensor in tensors.values()), default=1)


def are_alike(base: Mapping[str, RawTensor], now: Mapping[str, RawTensor]) -> bool:
    """Return True if names, dtypes and shapes are equal, as a delta requires."""
    shapes = [{n: (t.dtype, t.shape) for n, t in each.items()} for each in (base, now)]
    return shapes[0] == shapes[1]


def compared(
    base: Mapping[str, RawTensor], now: Mapping[str, RawTensor]
) -> tuple[Delta, dict[str, str]]:
    """Return the delta, and the sha256 of each current tensor, in one pass on all cores."""
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
    """Return the indices at which two arrays differ.

    Words of eight bytes are compared first: that takes as long as comparing two bytes, and most
    words are equal.
    """
    each = WORD_BYTES // before.dtype.itemsize
    whole = len(before) // each * each
    words = np.flatnonzero(before[:whole].view(np.uint64) != after[:whole].view(np.uint64))
    near = (words[:, None] * each + np.arange(each)).reshape(-1)
    near = np.concatenate([near, np.arange(whole, len(before))])
    places: Places = near[before[near] != after[near]]
    return places


def followed(base: Mapping[str, RawTensor], data: bytes) -> dict[str, RawTensor]:
    """Return weights with the delta of a file applied, like `applied`. Raises WeightsDiffer."""
    size = element_size(base)
    return applied(base, decoded(data, _elements(base, size), size))


def applied(base: Mapping[str, RawTensor], delta: Delta) -> dict[str, RawTensor]:
    """Return weights with a delta applied; the given ones do not change. Raises WeightsDiffer."""
    size = element_size(base)
    elements = _elements(base, size)
    if (elements, size) != (delta.elements, delta.values.dtype.itemsize):
        msg = (
            f"a delta of {delta.elements} elements of {delta.values.dtype.itemsize} bytes, but "
            f"these weights have {elements} of {size}; is it of another model?"
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
    """Return the smallest file of a delta."""
    count = len(delta.places)
    plain = 0 if delta.elements <= 1 << 32 else WIDE
    gaps = np.diff(delta.places, prepend=np.int64(-1)) - 1
    units = {form: count + int((gaps // _all_ones(form)).sum()) for form in (PAIRS, BYTES)} | {
        plain: count
    }
    flags = min(units, key=lambda form: units[form] * np.dtype(FORMS[form]).itemsize)
    if flags == plain:
        return encoded_plainly(delta)
    return _file(flags, _gap_coded(gaps, flags), delta.values)


def encoded_plainly(delta: Delta) -> bytes:
    """Return the file of a delta, with its places as u32 or u64."""
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
        msg = f"a delta of {len(data)} bytes that ends within a place; was it truncated?"
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
    """Encode each gap as units of all ones, as many as fit, and one unit for the rest."""
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
    """Yield the name of each tensor, and the place of its first element."""
    order = sorted(tensors)
    sizes = (len(tensors[name].data) // size for name in order)
    return zip(order, accumulate(sizes, initial=0), strict=False)
