"""The readers and writers of `rollcall.schemas.avro_code` as Cython source, for a compiler.

Each type has two C functions over the primitives of `avro_primitives.pyx`: `get_NAME(source)` reads
a value, `put_NAME(sink, value)` writes one. If one of them raises anything, plain code repeats the
call, and its error is raised.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, fields
from importlib.resources import files

from rollcall.schemas.avro_code import PASS, Types
from rollcall.schemas.avro_schemas import Avro, class_of, schema_of

GET = "cdef object get_{name}(Source* s):"
PUT = "cdef int put_{name}(Sink* out, object x) except -1:"
READ = """
def read_{name}(bytes d not None, Py_ssize_t begin):
    cdef const unsigned char* data = <const unsigned char*>PyBytes_AS_STRING(d)
    cdef Source s
    s.at, s.end = data + begin, data + PyBytes_GET_SIZE(d)
    try:
        m = get_{name}(&s)
    except Exception:
        return in_plain_words(Class{name}, d, begin)
    return m, s.at - data
"""
WRITE = """
def write_{name}(m, list out not None):
    cdef Sink sink
    sink.data, sink.size, sink.room = NULL, 0, 0
    try:
        put_{name}(&sink, m)
        out.append(PyBytes_FromStringAndSize(sink.data, sink.size))
    finally:
        PyMem_Free(sink.data)
"""


def source(records: Iterable[type], made_from: str) -> str:
    """Return a Cython module that reads and writes these records, with its sources' digest."""
    functions = _CythonFunctions()
    names = [functions.of(schema_of(record)) for record in records]
    entries = [entry.format(name=name) for entry in (READ, WRITE) for name in names]
    head = (files("rollcall.schemas") / "avro_primitives.pyx").read_text()
    tables = [
        f"{table} = {{{', '.join(f'messages.{name}: {verb}_{name}' for name in of)}}}"
        for table, verb, of in (
            ("READERS", "read", names),
            ("WRITERS", "write", names),
            ("MAKERS", "make", functions.records),
        )
    ]
    made = f"MADE_FROM = {made_from!r}\n"
    return "\n".join([head, *functions.texts.values(), *entries, *tables, made])


class _CythonFunctions(Types):
    """The functions of types, generated on first use."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: dict[str, str] = {}
        self.records: list[str] = []

    def of(self, avro: Avro) -> str:
        """Return the common part of the names of a type's functions."""
        kind, avro = self.kind(avro)
        if kind in PASS:
            return "long" if kind == "int" else kind
        return OTHERS[kind](self, avro)

    def add(self, name: str, get: list[str], put: list[str], *constants: str) -> str:
        """Generate both functions of a type, given the lines of their bodies."""
        bodies = [(GET.format(name=name), get), (PUT.format(name=name), [*put, "return 0"])]
        texts = ["\n    ".join([head, *lines]) for head, lines in bodies]
        self.texts[name] = "\n\n".join([*constants, *texts]) + "\n"
        return name

    def record(self, avro: Avro) -> str:
        cls = class_of(avro["name"])
        name = cls.__name__
        if name in self.texts:
            return name
        self.texts[name] = ""
        self.records.append(name)
        values = [(field["name"], self.of(field["type"])) for field in avro["fields"]]
        # `fill` bypasses the `__setattr__` of a frozen dataclass.
        get = [f"fill(m, {name}_{field}, get_{of}(s))" for field, of in values]
        put = [f"put_{of}(out, held(x, {name}_{field}))" for field, of in values]
        empty = f"m = PyType_GenericAlloc(<PyTypeObject*>Class{name}, 0)"
        check = [f"if Checked{name}:", "    m.__post_init__()"]
        self.texts[f"make_{name}"] = _maker(cls, empty, check)
        return self.add(
            name,
            [empty, *get, *check, "return m"],
            [f"if type(x) is not Class{name}: wrong()", *put],
            f"cdef object Class{name} = messages.{name}",
            *(
                f"cdef Py_ssize_t {name}_{field} = place(messages.{name}, {field!r})"
                for field, _ in values
            ),
            f"cdef bint Checked{name} = hasattr(messages.{name}, '__post_init__')",
        )

    def enum(self, avro: Avro) -> str:
        name = avro["name"].rpartition(".")[2]
        symbols = tuple(avro["symbols"])
        return self.add(
            name,
            [f"return Symbols{name}[get_index(s, {len(symbols)})]"],
            [f"put_varint(out, 2 * <uint64_t>Indices{name}[x])"],
            f"cdef tuple Symbols{name} = {symbols!r}",
            f"cdef dict Indices{name} = { ({symbol: n for n, symbol in enumerate(symbols)})!r}",
        )

    def array(self, avro: Avro) -> str:
        of = self.of(avro["items"])
        return self.add(
            f"array_of_{of}",
            [
                "cdef const unsigned char* end",
                "cdef Py_ssize_t n = get_block(s, &end)",
                "if not n:",
                "    return ()",
                f"items = [get_{of}(s) for _ in range(n)]",
                "end_items(s, end)",
                "while True:",
                "    n = get_block(s, &end)",
                "    if not n:",
                "        return tuple(items)",
                "    for _ in range(n):",
                f"        items.append(get_{of}(s))",
                "    end_items(s, end)",
            ],
            [
                "put_varint(out, 2 * <uint64_t>len(x))",
                "if x:",
                "    for item in x:",
                f"        put_{of}(out, item)",
                "    put_varint(out, 0)",
            ],
        )

    def map(self, avro: Avro) -> str:
        of = self.of(avro["values"])
        return self.add(
            f"map_of_{of}",
            [
                "cdef const unsigned char* end",
                "cdef Py_ssize_t n = get_block(s, &end)",
                "cdef dict items = {}",
                "last = None",
                "while n:",
                "    for _ in range(n):",
                "        key = get_string(s)",
                "        if last is not None and key <= last:",
                "            wrong()",
                f"        items[key] = get_{of}(s)",
                "        last = key",
                "    end_items(s, end)",
                "    n = get_block(s, &end)",
                "return items",
            ],
            [
                "items = sorted(x.items())",
                "put_varint(out, 2 * <uint64_t>len(items))",
                "if items:",
                "    for key, value in items:",
                "        put_string(out, key)",
                f"        put_{of}(out, value)",
                "    put_varint(out, 0)",
            ],
        )

    def union(self, branches: Avro) -> str:
        """Generate a union of null and one other type, or of records, which differ by class."""
        names = [self.of(branch) for branch in branches]
        one_of = enumerate(names)
        is_it = {name: f"type(x) is Class{name}" for name in names}
        if names[0] == "null":
            is_it = {"null": "x is None", names[1]: "x is not None"}
        get = [f"if n == {n}: return get_{name}(s)" for n, name in one_of]
        put = [
            line
            for n, name in enumerate(names)
            for line in (
                f"if {is_it[name]}:",
                f"    put_varint(out, {2 * n})",
                f"    put_{name}(out, x)",
                "    return 0",
            )
        ]
        return self.add(
            "_or_".join(names),
            [f"cdef Py_ssize_t n = get_index(s, {len(names)})", *get, "wrong()"],
            [*put, "wrong()"],
        )


def _maker(cls: type, empty: str, check: list[str]) -> str:
    """Generate a constructor of a message with the signature of its class."""
    name = cls.__name__
    parameters, lines = [], [empty]
    for field in fields(cls):
        of, default = f"messages.{name}.__dataclass_fields__[{field.name!r}]", ""
        if field.default is not MISSING:
            default = f"={of}.default"
        elif field.default_factory is not MISSING:
            default = "=MISSING"
            lines.append(f"if {field.name} is MISSING: {field.name} = {of}.default_factory()")
        parameters.append(f"object {field.name}{default}")
        lines.append(f"fill(m, {name}_{field.name}, {field.name})")
    head = f"def make_{name}({', '.join(parameters)}):"
    return "\n    ".join([head, *lines, *check, "return m"]) + "\n"


OTHERS: Mapping[str, Callable[[_CythonFunctions, Avro], str]] = {
    "record": _CythonFunctions.record,
    "enum": _CythonFunctions.enum,
    "array": _CythonFunctions.array,
    "map": _CythonFunctions.map,
    "union": _CythonFunctions.union,
}
