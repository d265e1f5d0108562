"""Numbers, lengths and indices of Avro's binary encoding, for generated code.

Reading accepts only bytes that writing would produce. A ValueError describes the fault; an
IndexError or a struct.error means that the bytes end early.
"""

import struct
from operator import index
from typing import NoReturn

NUMBERS = [(n >> 1) ^ -(n & 1) for n in range(128)]
"""The number for each single byte."""
LENGTHS = [n >> 1 if n < 128 and not n & 1 else -1 for n in range(256)]
"""The length of a text for each first byte; -1 if the length takes more than one byte."""
KNOWN_LENGTHS = 4096
GET_FLOAT, PUT_FLOAT = struct.Struct("<f").unpack_from, struct.Struct("<f").pack
GET_DOUBLE, PUT_DOUBLE = struct.Struct("<d").unpack_from, struct.Struct("<d").pack


def number(d: bytes, i: int) -> tuple[int, int]:
    """Read a number of any length; return it and its end."""
    value = shift = 0
    while True:
        byte = d[i]
        i += 1
        value |= (byte & 127) << shift
        if byte < 128:
            break
        shift += 7
        if shift > 63:
            msg = "a number of more than 64 bits"
            raise ValueError(msg)
    if (shift and not byte) or value >> 64:
        msg = f"a number written in {shift // 7 + 1} bytes that it does not need, or cannot fill"
        raise ValueError(msg)
    return (value >> 1) ^ -(value & 1), i


def length(d: bytes, i: int) -> tuple[int, int]:
    """Read the length of a text or the count of items; each takes at least one byte."""
    if not d[i] & 1 and 0 < d[i + 1] < 128 <= d[i]:
        n, i = d[i + 1] << 6 | (d[i] & 127) >> 1, i + 2
    else:
        n, i = number(d, i)
    if n < 0:
        msg = f"a length of {n}"
        raise ValueError(msg)
    if n > len(d):
        msg = f"a length of {n} in a value of {len(d)} bytes"
        raise ValueError(msg)
    return n, i


def block(d: bytes, i: int) -> tuple[int, int, int]:
    """Read the head of a block: count of items, their start, and their end if it is stated, else 0.

    A negative count is followed by the size of its items in bytes, as clients in Go write it.
    """
    n, i = number(d, i)
    end = 0
    if n < 0:
        n = -n
        size, i = length(d, i)
        end = i + size
        if end > len(d):
            msg = f"a block of {size} bytes that begins at byte {i} of {len(d)}"
            raise ValueError(msg)
    return n, i, end


def no_items(n: int, d: bytes) -> NoReturn:
    """Refuse more items than there are bytes."""
    msg = f"{n} items in a value of {len(d)} bytes"
    raise ValueError(msg)


def wrong_size(i: int, end: int) -> NoReturn:
    """Refuse a block whose items do not end where its size says."""
    msg = f"a block whose items end at byte {i}, and by its size at byte {end}"
    raise ValueError(msg)


def varint(n: int) -> bytes:
    """Return the bytes of an integer; raise OverflowError if it needs more than 64 bits."""
    n = index(n)  # numpy's integers overflow silently
    if not -(1 << 63) <= n < 1 << 63:
        msg = f"a number of more than 64 bits: {n}"
        raise OverflowError(msg)
    rest, written = (n << 1) ^ (n >> 63), bytearray()
    while rest > 127:
        written.append(rest & 127 | 128)
        rest >>= 7
    written.append(rest)
    return bytes(written)


class Lengths(dict[int, bytes]):
    """Return the bytes of a length; those of frequent lengths are cached."""

    def __missing__(self, n: int) -> bytes:
        return varint(n)


SMALL = [varint(n) for n in (*range(64), *range(-64, 0))]
"""The bytes of numbers of one byte; negative numbers index from the end of the list."""
PUT_LENGTH = Lengths((n, varint(n)) for n in range(KNOWN_LENGTHS))


class Symbols(dict[int, str]):
    """Return the symbols of an enum by the byte that encodes each."""

    def __missing__(self, n: int) -> NoReturn:
        msg = f"an enum of {len(self)} symbols has none for byte {n}"
        raise ValueError(msg)


def no_boolean(n: int) -> NoReturn:
    """Refuse a byte that is neither true nor false."""
    msg = f"a boolean of {n}"
    raise ValueError(msg)


def no_branch(n: int) -> NoReturn:
    """Refuse a byte that names no branch of a union."""
    msg = f"a union that has no branch for byte {n}"
    raise ValueError(msg)


def misplaced(key: str) -> NoReturn:
    """Refuse a key of a map that is repeated or out of order."""
    msg = f"a map with {key!r} twice, or out of order; keys ascend"
    raise ValueError(msg)


def no_bytes(value: object) -> NoReturn:
    """Refuse a value that is not bytes, since the length of other buffers counts items."""
    msg = f"a bytes-like object is required, not {type(value).__name__!r}"
    raise TypeError(msg)
