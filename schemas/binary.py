"""Avro binary, compiled: for each record a function that reads its message and one that writes it.

Both are written out as Python from the record's schema, as dataclasses does it for `__init__`: no
dict stands between a message and its bytes. They know our own schemas only; bytes of any other are
brought to ours by fastavro first (`schemas.codec`). Damaged bytes raise one of `DAMAGED`.
"""

import struct
from collections.abc import Callable, Mapping
from typing import Any

Schema = dict[str, Any]
Read = Callable[[bytes, int], tuple[Any, int]]
"""Reads a message from a position on; returns it and the position behind it."""
Write = Callable[[Any], bytes]
Compile = Callable[[str], Any]
"""The function of the record that is named."""

DAMAGED = (IndexError, ValueError, TypeError, OverflowError, struct.error)
UNWRITABLE = (KeyError, ValueError, TypeError, AttributeError, OverflowError, struct.error)

DOUBLE = struct.Struct("<d")
BITS = {"int": 32, "long": 64}


def long_at(data: bytes, at: int) -> tuple[int, int]:
    """A zigzag varint as it lies there (twice the number, odd if negative), and what follows."""
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            break
        shift += 7
    if value >> 64:
        msg = "a number of more than 64 bits"
        raise ValueError(msg)
    return value, at


def long_of(value: int, bits: int = 64) -> bytes:
    """The zigzag varint of a number; raises OverflowError for one that does not fit."""
    if not -(1 << bits - 1) <= value < 1 << bits - 1:
        msg = f"{value} does not fit into {bits} bits"
        raise OverflowError(msg)
    rest = value << 1 if value >= 0 else ~(value << 1)
    out = bytearray()
    while rest > 127:
        out.append(rest & 127 | 128)
        rest >>= 7
    out.append(rest)
    return bytes(out)


SMALL = tuple(long_of(number) for number in range(20_000))
"""Most numbers on the wire are small, lengths above all."""


def counts_at(data: bytes, at: int) -> tuple[int, int]:
    """The count that begins a block of an array or map; its size in bytes, if told, is skipped."""
    raw, at = long_at(data, at)
    if raw & 1:
        raw = (raw + 1) & ~1
        at = long_at(data, at)[1]
    return raw >> 1, at


def bad(what: str, found: object) -> Any:
    msg = f"no {what} has number {found}"
    raise ValueError(msg)


# Reading

LENGTH = """\
n = data[at]
at += 1
if n > 127:
    n, at = long_at(data, at - 1)
if n & 1:
    bad("length", n)
end = at + (n >> 1)
"""
NUMBER = """\
n = data[at]
at += 1
if n > 127:
    n, at = long_at(data, at - 1)
"""


def _indented(code: str) -> str:
    return "".join(f"    {line}\n" for line in code.splitlines())


class _Source:
    """The text of one function, and the objects that its names stand for."""

    def __init__(self, compile_: Compile) -> None:
        self.compile = compile_
        self.names: dict[str, Any] = {
            "long_at": long_at,
            "long_of": long_of,
            "counts_at": counts_at,
            "bad": bad,
            "SMALL": SMALL,
            "DOUBLE": DOUBLE,
        }
        self.depth = 0

    def name(self, thing: Any) -> str:
        name = f"given{len(self.names)}"
        self.names[name] = thing
        return name

    def function(self, text: str) -> Any:
        exec(text, self.names)
        return self.names["run"]


def reader(record: type, schema: Schema, readers: Compile) -> Read:
    """Compile the reader of a record; `readers` gives those of the records inside it."""
    source = _Source(readers)
    body = "".join(
        _reading(source, field["type"], f"f{number}")
        for number, field in enumerate(schema["fields"])
    )
    made = ", ".join(f"f{number}" for number in range(len(schema["fields"])))
    body += f"return {source.name(record)}({made}), at\n"
    read: Read = source.function("def run(data, at):\n" + _indented(body))
    return read


def _reading(source: _Source, avro: Any, into: str) -> str:
    """Lines that leave one value in the variable `into` and `at` behind it."""
    if isinstance(avro, list):
        return _reading_union(source, avro, into)
    kind = avro["type"] if isinstance(avro, Mapping) else avro
    if kind in BITS:
        return NUMBER + f"{into} = n >> 1 ^ -(n & 1)\n"
    if kind == "string":
        return LENGTH + f"{into} = data[at:end].decode()\nat = end\n"
    if kind == "bytes":
        return LENGTH + f"{into} = data[at:end]\nat = end\n"
    if kind == "boolean":
        return f"{into} = data[at] != 0\nat += 1\n"
    if kind == "double":
        return f"({into},) = DOUBLE.unpack_from(data, at)\nat += 8\n"
    if kind == "enum":
        symbols = source.name(tuple(avro["symbols"]))
        return NUMBER + f"{into} = {symbols}[n >> 1] if not n & 1 else bad('symbol', n)\n"
    if kind in ("array", "map"):
        return _reading_many(source, avro, into)
    return f"{into}, at = {source.name(source.compile(_record_of(avro)))}(data, at)\n"


def _reading_union(source: _Source, avro: list[Any], into: str) -> str:
    if avro[0] == "null":
        some = _reading(source, avro[1], into)
        return (
            f"{into} = None\nn = data[at]\nat += 1\nif n == 2:\n{_indented(some)}"
            f"elif n:\n    bad('branch', n)\n"
        )
    branches = source.name(tuple(source.compile(_record_of(branch)) for branch in avro))
    return NUMBER + (
        f"{into}, at = ({branches}[n >> 1] if not n & 1 else bad('branch', n))(data, at)\n"
    )


def _reading_many(source: _Source, avro: Mapping[str, Any], into: str) -> str:
    source.depth += 1
    left, item, key = (f"{name}{source.depth}" for name in ("left", "item", "key"))
    if avro["type"] == "map":
        one = _reading(source, "string", key) + _reading(source, avro["values"], item)
        empty, put, done = "{}", f"{into}[{key}] = {item}\n", ""
    else:
        one = _reading(source, avro["items"], item)
        empty, put, done = "[]", f"{into}.append({item})\n", f"{into} = tuple({into})\n"
    again = f"{left}, at = counts_at(data, at)\n"
    loop = f"for _ in range({left}):\n{_indented(one + put)}{again}"
    return f"{into} = {empty}\n{again}while {left}:\n{_indented(loop)}{done}"


def _record_of(avro: Any) -> str:
    return str(avro["name"] if isinstance(avro, Mapping) else avro)


# Writing


def writer(schema: Schema, writers: Compile) -> Write:
    """Compile the writer of a record; `writers` gives those of the records inside it."""
    source = _Source(writers)
    parts = [
        part
        for field in schema["fields"]
        for part in _writing(source, field["type"], f"message.{field['name']}")
    ]
    joined = "".join(f"        {part},\n" for part in parts)
    write: Write = source.function(f"def run(message):\n    return b''.join((\n{joined}    ))\n")
    return write


def _writing(source: _Source, avro: Any, value: str) -> list[str]:
    """Expressions for the bytes of one value, in order; each may use what those before it named."""
    if isinstance(avro, list):
        return [_writing_union(source, avro, value)]
    kind = avro["type"] if isinstance(avro, Mapping) else avro
    if kind in BITS:
        return [f"SMALL[n] if -1 < (n := {value}) < 20000 else long_of(n, {BITS[kind]})"]
    if kind in ("string", "bytes"):
        packed = f"{value}.encode()" if kind == "string" else value
        return [f"SMALL[n] if (n := len(v := {packed})) < 20000 else long_of(n)", "v"]
    if kind == "boolean":
        return [f"b'\\1' if {value} else b'\\0'"]
    if kind == "double":
        return [f"DOUBLE.pack({value})"]
    if kind == "enum":
        numbers = {symbol: long_of(number) for number, symbol in enumerate(avro["symbols"])}
        return [f"{source.name(numbers)}[{value}]"]
    if kind == "array":
        one = f"lambda item: b''.join(({', '.join(_writing(source, avro['items'], 'item'))},))"
        return [f"long_of(len({value})) if {value} else b''", f"*map({one}, {value})", "b'\\0'"]
    if kind == "map":  # equal maps are equal bytes, however they were filled
        parts = _writing(source, "string", "item[0]") + _writing(source, avro["values"], "item[1]")
        pair = f"lambda item: b''.join(({', '.join(parts)},))"
        return [
            f"long_of(len({value})) if {value} else b''",
            f"*map({pair}, sorted({value}.items()))",
            "b'\\0'",
        ]
    return [f"{source.name(source.compile(_record_of(avro)))}({value})"]


def _writing_union(source: _Source, avro: list[Any], value: str) -> str:
    if avro[0] == "null":
        parts = ", ".join(["b'\\2'", *_writing(source, avro[1], value)])
        return f"b'\\0' if {value} is None else b''.join(({parts},))"
    numbered = {
        _record_of(branch).rpartition(".")[2]: (long_of(number), source.compile(_record_of(branch)))
        for number, branch in enumerate(avro)
    }
    branches = source.name(numbered)
    return f"(b := {branches}[type({value}).__name__])[0] + b[1]({value})"
