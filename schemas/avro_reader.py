"""A reader of Avro's binary encoding that is compiled from a schema and takes nothing on trust.

What it reads would be written as the same bytes: numbers as short as they go, booleans of 0 or 1,
an index that the union or enum has, an array or a map in one block, keys of a map in order and
once, text in UTF-8. fastavro takes -1 for the last symbol, 2 for true, and passes over the size of
a block, so that there one flipped byte makes another message.

One function is written per record, since a line of Python costs less than a call of fastavro's: it
reads a message of ours in half of the time, straight into its class. Without a maker of records
nothing is built, and the bytes are only checked; others may write maps in what order they like.
"""

import struct
from collections.abc import Callable
from typing import Any, NoReturn

Avro = Any
Read = Callable[[bytes, int], tuple[Any, int]]
Check = Callable[[bytes, int], int]
"""Given the bytes and where the value begins, where it ends; the caller looks that it is there."""
Make = Callable[[str], Callable[..., Any]]
"""By the full name of a record, what takes the values of its fields in order."""

ONE_BYTE = 64
"""Branches or symbols whose index is one byte."""
NUMBERS = [(n >> 1) ^ -(n & 1) for n in range(128)]
LENGTHS = [n >> 1 if n < 128 and not n & 1 else -1 for n in range(256)]
"""By its first byte the length of a text, -1 where it takes more than that byte to say."""


class _Symbols(dict[int, str]):
    """The symbols of an enum by the byte that stands for each."""

    def __missing__(self, n: int) -> NoReturn:
        msg = f"an enum of {len(self)} symbols has none for byte {n}"
        raise ValueError(msg)


def number(d: bytes, i: int) -> tuple[int, int]:
    """A number of any length, and where it ends."""
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
    """How long a text is, or how many items there are; each takes a byte, or there are too many."""
    n, i = number(d, i)
    if n < 0:
        msg = f"a length of {n}, or a block with its size before it; there is one block, without"
        raise ValueError(msg)
    if n > len(d):
        msg = f"a length of {n} in a value of {len(d)} bytes"
        raise ValueError(msg)
    return n, i


def no_boolean(n: int) -> NoReturn:
    """Refuse a byte that is neither true nor false."""
    msg = f"a boolean of {n}"
    raise ValueError(msg)


def no_branch(n: int) -> NoReturn:
    """Refuse a byte that names no branch of a union."""
    msg = f"a union that has no branch for byte {n}"
    raise ValueError(msg)


def second_block() -> NoReturn:
    """Refuse an array or a map that goes on in another block."""
    msg = "an array or a map in more than one block; write it as one"
    raise ValueError(msg)


def misplaced(key: str) -> NoReturn:
    """Refuse a key of a map that is there twice or out of order."""
    msg = f"a map with {key!r} twice, or out of order; keys ascend"
    raise ValueError(msg)


HELPERS: dict[str, Any] = {
    of.__name__: of for of in (number, length, no_boolean, no_branch, second_block, misplaced)
}
HELPERS |= {"NUMBERS": NUMBERS, "LENGTHS": LENGTHS}
HELPERS |= {"FLOAT": struct.Struct("<f").unpack_from, "DOUBLE": struct.Struct("<d").unpack_from}

_LENGTH = ("n = LENGTHS[d[i]]", "i += 1", "if n < 0:", "    n, i = length(d, i - 1)")
_SMALL = ("if d[i] < 128:",)
_TRUTH = ("if d[i] > 1:", "    no_boolean(d[i])")
BUILD: dict[str, tuple[str, ...]] = {
    "null": ("{v} = None",),
    "boolean": (*_TRUTH, "{v} = d[i] == 1", "i += 1"),
    "int": (*_SMALL, "    {v} = NUMBERS[d[i]]", "    i += 1", "else:", "    {v}, i = number(d, i)"),
    "float": ("{v}, = FLOAT(d, i)", "i += 4"),
    "double": ("{v}, = DOUBLE(d, i)", "i += 8"),
    "bytes": (*_LENGTH, "j = i + n", "{v} = d[i:j]", "i = j"),
    "string": (*_LENGTH, "j = i + n", "{v} = d[i:j].decode()", "i = j"),
}
"""By the kind of a value the lines that read it, from where `i` stands, into `{v}`."""
PASS: dict[str, tuple[str, ...]] = {
    "null": (),
    "boolean": (*_TRUTH, "i += 1"),
    "int": (*_SMALL, "    i += 1", "else:", "    i = number(d, i)[1]"),
    "float": ("i += 4",),
    "double": ("i += 8",),
    "bytes": (*_LENGTH, "i += n"),
    "string": (*_LENGTH, "d[i : i + n].decode()", "i += n"),
}
for _lines in (BUILD, PASS):
    # Python's numbers know no width; what is too wide for an int we have always read.
    _lines["long"] = _lines["int"]


class _Compiler:
    """Writes the functions for one schema."""

    def __init__(self, make: Make | None) -> None:
        self.make = make
        self.scope = dict(HELPERS)
        self.named: dict[str, Avro] = {}
        self.functions: dict[str, str] = {}
        self.lines: list[str] = []
        self.variables = 0

    def function(self, record: Avro) -> str:
        """The name of the function that reads a record; it is written when first asked for."""
        name = record["name"]
        if name in self.functions:
            return self.functions[name]
        self.named[name] = record
        called = self.functions[name] = f"record_{len(self.functions)}"
        around, self.lines = self.lines, [f"def {called}(d, i):"]
        values = []
        for field in record["fields"]:
            values.append(self.variable())
            self.value(field["type"], values[-1], "    ")
        made = ""
        if self.make is not None:
            self.scope[f"make_{called}"] = self.make(name)
            made = f"make_{called}({', '.join(values)}), "
        self.lines.append(f"    return {made}i")
        exec(compile("\n".join(self.lines), f"<{called}>", "exec"), self.scope)
        self.lines = around
        return called

    def variable(self) -> str:
        self.variables += 1
        return f"v{self.variables}"

    def write(self, pad: str, *lines: str) -> None:
        self.lines += [pad + line for line in lines]

    def value(self, avro: Avro, v: str, pad: str) -> None:
        """Write what reads one value of a type into a variable."""
        if isinstance(avro, list):
            self.union(avro, v, pad)
            return
        kind = avro if isinstance(avro, str) else avro["type"]
        plain = PASS if self.make is None else BUILD
        if not isinstance(kind, str):
            self.value(kind, v, pad)
        elif kind in plain:
            self.write(pad, *(line.format(v=v) for line in plain[kind]))
        elif kind in OTHERS:
            OTHERS[kind](self, avro, v, pad)
        else:
            self.value(self.named[kind], v, pad)

    def record(self, avro: Avro, v: str, pad: str) -> None:
        into = "i" if self.make is None else f"{v}, i"
        self.write(pad, f"{into} = {self.function(avro)}(d, i)")

    def fixed(self, avro: Avro, v: str, pad: str) -> None:
        self.named[avro["name"]] = avro
        size = int(avro["size"])  # what a registry says is not taken into code
        if size < 0:
            msg = f"a fixed of {size} bytes"
            raise ValueError(msg)
        self.write(pad, f"{v} = d[i : i + {size}]", f"i += {size}")

    def enum(self, avro: Avro, v: str, pad: str) -> None:
        self.named[avro["name"]] = avro
        symbols = f"SYMBOLS_{v}"
        self.scope[symbols] = _Symbols({2 * n: of for n, of in enumerate(avro["symbols"])})
        self.index(len(avro["symbols"]), pad)
        self.write(pad, f"{v} = {symbols}[n]")

    def union(self, branches: Avro, v: str, pad: str) -> None:
        self.index(len(branches), pad)
        for n, branch in enumerate(branches):
            self.write(pad, f"{'elif' if n else 'if'} n == {2 * n}:")
            self.value(branch, v, f"{pad}    ")
            self.write(pad, "    pass")
        self.write(pad, "else:" if branches else "if True:", "    no_branch(n)")

    def index(self, count: int, pad: str) -> None:
        """Write what reads an index, twice as large as it is."""
        if count <= ONE_BYTE:
            self.write(pad, "n = d[i]", "i += 1")
        else:
            self.write(pad, "n, i = number(d, i)", "n += n")

    def array(self, avro: Avro, v: str, pad: str) -> None:
        self.write(pad, f"{v}s = []")
        item = self.block(avro["items"], pad, lambda inside: None)
        if self.make is not None:
            self.write(f"{pad}        ", f"{v}s.append({item})")
        self.end_of_block(pad)
        self.write(pad, f"{v} = tuple({v}s)")

    def map(self, avro: Avro, v: str, pad: str) -> None:
        def key(inside: str) -> None:
            self.write(inside, *_LENGTH, f"{v}k = d[i : i + n].decode()", "i += n")
            wrong = f"{v}k in {v}s" if self.make is None else f"{v}s and {v}k <= {v}l"
            self.write(inside, f"if {wrong}:", f"    misplaced({v}k)", f"{v}l = {v}k")

        self.write(pad, f"{v}s = {{}}")
        item = self.block(avro["values"], pad, key)
        into = f"{v}k] = None" if self.make is None else f"{v}k] = {item}"
        self.write(f"{pad}        ", f"{v}s[{into}")
        self.end_of_block(pad)
        self.write(pad, f"{v} = {v}s")

    def block(self, of: Avro, pad: str, before: Callable[[str], None]) -> str:
        """Write the loop over a block; return the variable that holds an item."""
        item = self.variable()
        self.write(pad, "n, i = length(d, i)", "if n:", "    for _ in range(n):")
        before(f"{pad}        ")
        self.value(of, item, f"{pad}        ")
        self.write(pad, "        pass")
        return item

    def end_of_block(self, pad: str) -> None:
        self.write(pad, "    if d[i]:", "        second_block()", "    i += 1")


OTHERS: dict[str, Callable[[_Compiler, Avro, str, str], None]] = {
    "record": _Compiler.record,
    "error": _Compiler.record,
    "fixed": _Compiler.fixed,
    "enum": _Compiler.enum,
    "array": _Compiler.array,
    "map": _Compiler.map,
}


def reader(schema: Avro, make: Make) -> Read:
    """What reads a record, given the bytes and where it begins: its message and where that ends.

    The schema is a parsed record. Raises ValueError, IndexError or struct.error on bytes that are
    none; an end behind the end of the bytes says that they end early.
    """
    compiler = _Compiler(make)
    read: Read = compiler.scope[compiler.function(schema)]
    return read


def checker(schema: Avro) -> Check:
    """As `reader`, but nothing is built: only where the record ends."""
    compiler = _Compiler(None)
    check: Check = compiler.scope[compiler.function(schema)]
    return check
