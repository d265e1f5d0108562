"""Code generated from Avro schemas that converts bytes to messages and back in one pass.

A reader accepts only bytes that a writer would produce: the shortest form of numbers, booleans of 0
or 1, valid indices of unions and enums, unique keys of a map in order, UTF-8. fastavro accepts -1
for the last symbol and 2 for true, and ignores the size of a block, so there a flipped byte may
give another message. The exception are blocks, which other writers split differently: an array or a
map may have several, each with or without the size of its items; a given size must be right.

One function is generated per record, since a line of Python costs less than a call of fastavro's.
"""

from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import RLock
from typing import Any

from rollcall.schemas import avro_primitives

Avro = Any
Read = Callable[[bytes, int], tuple[Any, int]]
"""Takes bytes and the start of a record; returns its message and its end.

Raises ValueError, IndexError or struct.error for invalid bytes. An end after the last byte means
that the bytes end early.
"""
Check = Callable[[bytes, int], int]
"""Like `Read`, but returns only the end."""
Write = Callable[[Any, list[bytes]], None]
"""Appends the bytes of a message to a list, in pieces.

It may raise anything for a message of wrong types. Its bytes are those that fastavro would write.
"""
ClassOf = Callable[[str], type]
"""Returns the class of a message by the full name of its record."""

ONE_BYTE = 64
"""The number of branches or symbols whose index is one byte."""
_LENGTH = ("n = LENGTHS[d[i]]", "i += 1", "if n < 0:", "    n, i = length(d, i - 1)")
_SMALL = ("if d[i] < 128:",)
_TRUTH = ("if d[i] > 1:", "    no_boolean(d[i])")
BUILD: dict[str, tuple[str, ...]] = {
    "null": ("{v} = None",),
    "boolean": (*_TRUTH, "{v} = d[i] == 1", "i += 1"),
    "int": (*_SMALL, "    {v} = NUMBERS[d[i]]", "    i += 1", "else:", "    {v}, i = number(d, i)"),
    "float": ("{v}, = GET_FLOAT(d, i)", "i += 4"),
    "double": ("{v}, = GET_DOUBLE(d, i)", "i += 8"),
    "bytes": (*_LENGTH, "j = i + n", "{v} = d[i:j]", "i = j"),
    "string": (*_LENGTH, "j = i + n", "{v} = d[i:j].decode()", "i = j"),
}
"""The lines that read a value of each kind at `i` into `{v}`."""
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
    # Python's integers have no width; values too wide for Avro's int have always been accepted.
    _lines["long"] = _lines["int"]

WRITE: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "null": ((), ()),
    "boolean": ((), (r"b'\1' if {x} else b'\0'",)),
    "int": (("{v} = {x}",), ("SMALL[{v}] if -64 <= {v} < 64 else varint({v})",)),
    "float": ((), ("PUT_FLOAT({x})",)),
    "double": ((), ("PUT_DOUBLE({x})",)),
    "bytes": (
        ("{v} = {x}", "if type({v}) is not bytes:", "    no_bytes({v})"),
        ("PUT_LENGTH[len({v})]", "{v}"),
    ),
    "string": (("{v} = {x}.encode()",), ("PUT_LENGTH[len({v})]", "{v}")),
}
"""For each kind of a value `{x}`: the lines to run first, which may use `{v}`, and its pieces."""
WRITE["long"] = WRITE["int"]


class Types:
    """The named types of schemas; a type that occurs again is given by its name."""

    def __init__(self) -> None:
        self.named: dict[str, Avro] = {}

    def kind(self, avro: Avro) -> tuple[str, Avro]:
        """Return the kind of a type, and its full definition."""
        if isinstance(avro, list):
            return "union", avro
        kind = avro if isinstance(avro, str) else avro["type"]
        if not isinstance(kind, str):
            return self.kind(kind)
        if kind not in PASS and kind not in OTHERS:
            return self.kind(self.named[kind])
        if isinstance(avro, dict) and "name" in avro:
            self.named[avro["name"]] = avro
        return kind, avro


class _Functions(Types):
    """Functions that are generated on first use, one for each record."""

    head: str
    """The first line of a function."""

    def __init__(self) -> None:
        super().__init__()
        self.lock = RLock()
        self.scope = dict(vars(avro_primitives))
        self.functions: dict[str, str] = {}
        self.lines: list[str] = []
        self.depth = 0
        self.variables = 0

    def function(self, record: Avro) -> str:
        """Return the name of the function for a record."""
        name = record["name"]
        if name not in self.functions:
            self.named[name] = record
            self.functions[name] = f"record_{len(self.functions)}"
            self.define(self.functions[name], record)
        return self.functions[name]

    def define(self, function: str, record: Avro) -> None:
        """Generate a function, and define it in the scope under its name."""
        around, self.lines, self.depth = (self.lines, self.depth), [], 0
        with self.block(self.head.format(function=function)):
            self.body(record)
        exec(compile("\n".join(self.lines), f"<{function}>", "exec"), self.scope)
        self.lines, self.depth = around

    @abstractmethod
    def body(self, record: Avro) -> None:
        """Generate the code for the fields of a record."""

    def write(self, *lines: str) -> None:
        self.lines += ["    " * self.depth + line for line in lines]

    @contextmanager
    def block(self, head: str) -> Iterator[None]:
        """Indent the lines that are generated inside this context below a head line."""
        self.write(head)
        self.depth += 1
        yield
        self.depth -= 1

    def variable(self) -> str:
        self.variables += 1
        return f"v{self.variables}"


class Readers(_Functions):
    """Functions that read records, or only check them if there are no classes.

    A check accepts any order of a map's keys, since writers of other releases may differ.
    """

    head = "def {function}(d, i):"

    def __init__(self, class_of: ClassOf | None) -> None:
        super().__init__()
        self.class_of = class_of

    def of(self, record: Avro) -> Any:
        """Return the `Read` of a parsed schema, or its `Check` if there are no classes."""
        with self.lock:
            return self.scope[self.function(record)]

    def body(self, record: Avro) -> None:
        made = self.made(self.class_of(record["name"]), record) if self.class_of else ""
        for field in record["fields"]:
            self.value(field["type"], f"m.{field['name']}" if made else self.variable())
        self.write(*made and made.splitlines(), f"return {'m, ' if made else ''}i")

    def made(self, cls: type, record: Avro) -> str:
        """Generate an empty message; return the lines that complete it.

        A frozen dataclass sets every field by `object.__setattr__`. Here the fields are set on a
        mutable class with the same slots, whose instance then becomes the message.
        """
        names = tuple(field["name"] for field in record["fields"])
        self.scope[cls.__name__] = cls
        self.scope[f"Open{cls.__name__}"] = type(cls.__name__, (), {"__slots__": names})
        self.write(f"m = Open{cls.__name__}()")
        check = "\nm.__post_init__()" if hasattr(cls, "__post_init__") else ""
        return f"m.__class__ = {cls.__name__}{check}"

    def value(self, avro: Avro, v: str) -> None:
        """Generate code that reads one value of a type into a variable."""
        kind, avro = self.kind(avro)
        plain = BUILD if self.class_of else PASS
        if kind in plain:
            self.write(*(line.format(v=v) for line in plain[kind]))
        else:
            OTHERS[kind](self, avro, v)

    def record(self, avro: Avro, v: str) -> None:
        into = f"{v}, i" if self.class_of else "i"
        self.write(f"{into} = {self.function(avro)}(d, i)")

    def fixed(self, avro: Avro, v: str) -> None:
        size = int(avro["size"])  # text of a registry must not become code
        if size < 0:
            msg = f"a fixed of {size} bytes"
            raise ValueError(msg)
        self.write(f"{v} = d[i : i + {size}]", f"i += {size}")

    def enum(self, avro: Avro, v: str) -> None:
        table = f"SYMBOLS_{self.variable()}"
        self.scope[table] = avro_primitives.Symbols(
            {2 * n: symbol for n, symbol in enumerate(avro["symbols"])}
        )
        self.index(len(avro["symbols"]))
        self.write(f"{v} = {table}[n]")

    def union(self, branches: Avro, v: str) -> None:
        self.index(len(branches))
        for n, branch in enumerate(branches):
            with self.block(f"{'elif' if n else 'if'} n == {2 * n}:"):
                self.value(branch, v)
                self.write("pass")
        self.write("else:" if branches else "if True:", "    no_branch(n)")

    def index(self, count: int) -> None:
        """Generate code that reads an index, as twice its value."""
        if count <= ONE_BYTE:
            self.write("n = d[i]", "i += 1")
        else:
            self.write("n, i = number(d, i)", "n += n")

    def takes_bytes(self, avro: Avro, around: tuple[str, ...] = ()) -> bool:
        """Return True if every value of a type takes at least one byte."""
        kind, avro = self.kind(avro)
        if kind in ("record", "error"):
            inside = (*around, avro["name"])
            fields = (field["type"] for field in avro["fields"])
            return avro["name"] in around or any(self.takes_bytes(each, inside) for each in fields)
        return kind != "null" and not (kind == "fixed" and not int(avro["size"]))

    def array(self, avro: Avro, v: str) -> None:
        if not self.takes_bytes(avro["items"]):
            msg = "an array of items without bytes: a few of them may stand for any number"
            raise ValueError(msg)
        items, item = self.variable(), self.variable()
        self.write(f"{items} = []")
        with self.items():
            self.value(avro["items"], item)
            self.write(f"{items}.append({item})" if self.class_of else "pass")
        self.write(f"{v} = tuple({items})")

    def map(self, avro: Avro, v: str) -> None:
        items, key, last = self.variable(), self.variable(), self.variable()
        item = f"{items}[{key}]"
        wrong = f"{items} and {key} <= {last}" if self.class_of else f"{key} in {items}"
        self.write(f"{items} = {{}}")
        with self.items():
            self.write(*(line.format(v=key) for line in BUILD["string"]))
            self.write(f"if {wrong}:", f"    misplaced({key})", f"{last} = {key}", f"{item} = None")
            self.value(avro["values"], item if self.class_of else self.variable())
        self.write(f"{v} = {items}")

    @contextmanager
    def items(self) -> Iterator[None]:
        """Generate a loop over all blocks; the code generated inside reads an item."""
        end, count = self.variable(), self.variable()
        self.write(f"{end} = {count} = 0")
        with self.block("while d[i]:"):
            self.write("n = LENGTHS[d[i]]", "i += 1")
            self.write("if n < 0:", f"    n, i, {end} = block(d, i - 1)")
            self.write(f"{count} += n", f"if {count} > len(d):", f"    no_items({count}, d)")
            with self.block("for _ in range(n):"):
                yield
            with self.block(f"if {end}:"):
                self.write(f"if i != {end}:", f"    wrong_size(i, {end})", f"{end} = 0")
        self.write("i += 1")


OTHERS: dict[str, Callable[[Readers, Avro, str], None]] = {
    "record": Readers.record,
    "error": Readers.record,
    "fixed": Readers.fixed,
    "enum": Readers.enum,
    "array": Readers.array,
    "map": Readers.map,
    "union": Readers.union,
}


class Writers(_Functions):
    """Functions that write messages.

    Pieces are collected and appended to the list together, which costs less.
    """

    head = "def {function}(m, out):"

    def __init__(self, class_of: ClassOf) -> None:
        super().__init__()
        self.class_of = class_of
        self.pieces: list[str] = []

    def of(self, record: Avro) -> Write:
        """Return a function that writes a whole record of a parsed schema."""
        with self.lock:
            write: Write = self.scope[self.function(record)]
        return write

    def part(self, fields: list[Avro]) -> Write:
        """Return a function that writes only some fields of a record."""
        with self.lock:
            self.define("part", {"fields": fields})
            write: Write = self.scope["part"]
        return write

    def define(self, function: str, record: Avro) -> None:
        around, self.pieces = self.pieces, []
        super().define(function, record)
        self.pieces = around

    def body(self, record: Avro) -> None:
        for field in record["fields"]:
            self.value(field["type"], f"m.{field['name']}")
        self.flush()
        self.write("pass")

    def flush(self) -> None:
        """Generate code that appends the collected pieces to the list."""
        if self.pieces:
            self.write(f"out += ({', '.join(self.pieces)},)")
            self.pieces = []

    def value(self, avro: Avro, x: str) -> None:
        """Generate code that writes one value of a type, given an expression for it."""
        kind, avro = self.kind(avro)
        if kind in WRITE:
            first, pieces = WRITE[kind]
            v = self.variable()
            self.write(*(line.format(x=x, v=v) for line in first))
            self.pieces += [piece.format(x=x, v=v) for piece in pieces]
        else:
            WRITE_OTHERS[kind](self, avro, x)

    def record(self, avro: Avro, x: str) -> None:
        self.flush()
        self.write(f"{self.function(avro)}({x}, out)")

    def enum(self, avro: Avro, x: str) -> None:
        table = f"SYMBOLS_{self.variable()}"
        self.scope[table] = {
            symbol: avro_primitives.varint(n) for n, symbol in enumerate(avro["symbols"])
        }
        self.pieces.append(f"{table}[{x}]")

    def union(self, branches: Avro, x: str) -> None:
        """Generate a union of null and one other type, or of records, which differ by class."""
        v = self.variable()
        self.write(f"{v} = {x}")
        if branches[0] == "null":
            (other,) = branches[1:]
            self.pieces.append(rf"b'\0' if {v} is None else b'\2'")
            self.flush()
            with self.block(f"if {v} is not None:"):
                self.value(other, v)
                self.flush()
            return
        table = f"BRANCHES_{v}"
        self.scope[table] = {
            self.class_of(record["name"]): (
                avro_primitives.varint(n),
                self.scope[self.function(record)],
            )
            for n, (_, record) in enumerate(map(self.kind, branches))
        }
        self.write(f"{v}i, {v}w = {table}[type({v})]")
        self.pieces.append(f"{v}i")
        self.flush()
        self.write(f"{v}w({v}, out)")

    def array(self, avro: Avro, x: str) -> None:
        items, item = self.variable(), self.variable()
        self.write(f"{items} = {x}")
        with self.items(items), self.block(f"for {item} in {items}:"):
            self.value(avro["items"], item)
            self.flush()

    def map(self, avro: Avro, x: str) -> None:
        """Generate a map, sorted by key, so that equal maps give equal bytes."""
        items, key, item = self.variable(), self.variable(), self.variable()
        self.write(f"{items} = sorted({x}.items())")
        with self.items(items), self.block(f"for {key}, {item} in {items}:"):
            self.value("string", key)
            self.value(avro["values"], item)
            self.flush()

    @contextmanager
    def items(self, items: str) -> Iterator[None]:
        """Generate one block of items; the code generated inside loops over them.

        An empty list is one zero byte, like the end of the blocks.
        """
        self.pieces.append(f"PUT_LENGTH[len({items})]")
        self.flush()
        with self.block(f"if {items}:"):
            yield
            self.write(r"out.append(b'\0')")


WRITE_OTHERS: dict[str, Callable[[Writers, Avro, str], None]] = {
    "record": Writers.record,
    "enum": Writers.enum,
    "array": Writers.array,
    "map": Writers.map,
    "union": Writers.union,
}
