"""Straight code that is generated from Avro schemas: bytes to message, and back, in one pass.

What a reader reads would be written as the same bytes: numbers as short as they go, booleans of 0
or 1, an index that the union or enum has, keys of a map in order and once, text in UTF-8. fastavro
takes -1 for the last symbol, 2 for true, and passes over the size of a block, so that there one
flipped byte makes another message. Only blocks are read as others split them: an array or a map may
lie in several, each with the size of its items or without; that size has to be right.

One function is written per record, since a line of Python costs less than a call of fastavro's.
"""

from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import RLock
from typing import Any

from rollcall.schemas import avro_primitives

Avro = Any
Read = Callable[[bytes, int], tuple[Any, int]]
"""Given the bytes and where the record begins, its message and where that ends.

Raises ValueError, IndexError or struct.error on bytes that are none; an end behind the end of the
bytes says that they end early.
"""
Check = Callable[[bytes, int], int]
"""Like `Read`, but builds nothing."""
Write = Callable[[Any, list[bytes]], None]
"""Adds the bytes of a message to a list, piece by piece.

It may raise anything on a message of wrong types. What it does write, fastavro would write too.
"""
ClassOf = Callable[[str], type]
"""The class of a message, by the full name of its record."""

ONE_BYTE = 64
"""Branches or symbols whose index is one byte."""
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
"""By the kind of a value `{x}` what is done first, by means of `{v}`, and the pieces it makes."""
WRITE["long"] = WRITE["int"]


class Types:
    """The named types of schemas: a name says all of a type where it comes again."""

    def __init__(self) -> None:
        self.named: dict[str, Avro] = {}

    def kind(self, avro: Avro) -> tuple[str, Avro]:
        """The kind of a type, and the type with all that it says of itself."""
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
    """Functions that are written when they are first asked for, one for each record."""

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
        """The name of the function for a record."""
        name = record["name"]
        if name not in self.functions:
            self.named[name] = record
            self.functions[name] = f"record_{len(self.functions)}"
            self.define(self.functions[name], record)
        return self.functions[name]

    def define(self, function: str, record: Avro) -> None:
        """Write a function and make it callable in the scope, under its name."""
        around, self.lines, self.depth = (self.lines, self.depth), [], 0
        with self.block(self.head.format(function=function)):
            self.body(record)
        exec(compile("\n".join(self.lines), f"<{function}>", "exec"), self.scope)
        self.lines, self.depth = around

    @abstractmethod
    def body(self, record: Avro) -> None:
        """Write what is done with the fields of a record."""

    def write(self, *lines: str) -> None:
        self.lines += ["    " * self.depth + line for line in lines]

    @contextmanager
    def block(self, head: str) -> Iterator[None]:
        """Indent the lines that are written within under a head line."""
        self.write(head)
        self.depth += 1
        yield
        self.depth -= 1

    def variable(self) -> str:
        self.variables += 1
        return f"v{self.variables}"


class Readers(_Functions):
    """Functions that read records, or check them where there are no classes to make.

    Others may write maps in what order they like, so a check lets that pass.
    """

    head = "def {function}(d, i):"

    def __init__(self, class_of: ClassOf | None) -> None:
        super().__init__()
        self.class_of = class_of

    def of(self, record: Avro) -> Any:
        """The `Read` of a parsed schema, or the `Check` where nothing is made."""
        with self.lock:
            return self.scope[self.function(record)]

    def body(self, record: Avro) -> None:
        made = self.made(self.class_of(record["name"]), record) if self.class_of else ""
        for field in record["fields"]:
            self.value(field["type"], f"m.{field['name']}" if made else self.variable())
        self.write(*made and made.splitlines(), f"return {'m, ' if made else ''}i")

    def made(self, cls: type, record: Avro) -> str:
        """Write what makes an empty message; return what closes it when it is full.

        A frozen dataclass goes round its own lock for every field. So an open twin with the same
        slots is filled, which then becomes the message.
        """
        names = tuple(field["name"] for field in record["fields"])
        self.scope[cls.__name__] = cls
        self.scope[f"Open{cls.__name__}"] = type(cls.__name__, (), {"__slots__": names})
        self.write(f"m = Open{cls.__name__}()")
        check = "\nm.__post_init__()" if hasattr(cls, "__post_init__") else ""
        return f"m.__class__ = {cls.__name__}{check}"

    def value(self, avro: Avro, v: str) -> None:
        """Write what reads one value of a type into a variable."""
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
        size = int(avro["size"])  # what a registry says is not taken into code
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
        """Write what reads an index, twice as large as it is."""
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
        """Write the loop over all blocks; what is written within reads an item."""
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

    Pieces are gathered and added to the list together, which costs less than one by one.
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
        """Write what adds the pieces that were gathered to the list."""
        if self.pieces:
            self.write(f"out += ({', '.join(self.pieces)},)")
            self.pieces = []

    def value(self, avro: Avro, x: str) -> None:
        """Write what writes one value of a type, given an expression for it."""
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
        """Write a union of null and one other type, or of records, which differ by class."""
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
        """Equal maps are equal bytes, however they were filled."""
        items, key, item = self.variable(), self.variable(), self.variable()
        self.write(f"{items} = sorted({x}.items())")
        with self.items(items), self.block(f"for {key}, {item} in {items}:"):
            self.value("string", key)
            self.value(avro["values"], item)
            self.flush()

    @contextmanager
    def items(self, items: str) -> Iterator[None]:
        """Write what writes the one block of items, if there are any; within, a loop over them.

        The length of none and the end of a block are the same byte.
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
