"""The reference's test files as pytest loads them: their code and the contents of their modules.

This is the first part of the witness's program, followed by the text of `pytest_guard`. No other
module of ours can be imported there.
"""

from __future__ import annotations

import ast
import builtins
import types
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

RUNNERS = ("_pytest", "pytest", "pluggy", "unittest", "__main__")
"""Packages that decide on a test's outcome."""
MOST_BEHIND = 64
"""The most callables that are searched for the function of a test."""
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
Place = tuple[str, ...]
"""The names of classes and function of a test within its file."""


def function_of(value: Any) -> types.FunctionType | None:
    """Return the function behind a member of a class; None for anything else."""
    value = getattr(value, "__func__", getattr(value, "fget", value))
    return value if isinstance(value, types.FunctionType) else None


def seen(value: Any) -> tuple[Any, int, int]:
    """Return a value, and the ids of its function's code and defaults."""
    function = function_of(value)
    return value, id(getattr(function, "__code__", 0)), id(getattr(function, "__defaults__", 0))


def place_of(test: str) -> tuple[str, Place]:
    """Return the file of a test and its place there, by pytest's name for the test."""
    path, _, rest = test.partition("::")
    return path, tuple(rest.partition("[")[0].split("::"))


def held(code: types.CodeType) -> str:
    """Return the constants and names of a code object as text, as its tuples can be overwritten."""
    return repr((code.co_consts, code.co_names, code.co_varnames))


class TestFile:
    """One test file or `conftest.py` of the reference."""

    __test__ = False

    def __init__(self, source: bytes, code: types.CodeType) -> None:
        self._codes: dict[Place, list[tuple[types.CodeType, str]]] = {}
        self._gather(code, ())
        tree = ast.parse(source)
        self._bound = names_bound(tree)
        self._bodies = {
            node.name: set(names_in(node)) for node in tree.body if isinstance(node, ast.ClassDef)
        }
        self._spaces: list[Space] = []

    def _gather(self, code: types.CodeType, above: Place) -> None:
        for each in code.co_consts:
            if isinstance(each, types.CodeType):
                place = (*above, each.co_name)
                self._codes.setdefault(place, []).append((each, held(each)))
                self._gather(each, place)

    def ran(self, names: dict[str, Any]) -> None:
        """Record a module of this file directly after it was executed."""
        self._spaces.append(Space(names, self._bound, self._bodies))

    def makes(self, function: types.FunctionType) -> bool:
        """Return True if a function was defined in this file."""
        within = any(function.__globals__ is space.names for space in self._spaces)
        codes = (code for made in self._codes.values() for code, _ in made)
        return within and any(function.__code__ is code for code in codes)

    def complaint(self, function: Any, place: Place) -> str:
        """Return the reason why a test's function is not the file's; empty if it is."""
        made = self._codes.get(place) or [
            each for where, those in self._codes.items() if where[-1] == place[-1] for each in those
        ]
        if not made:
            return ""  # it was created while the file was executed
        for each in behind(function):
            for code, was in made:
                if each.__code__ is code:
                    return "has another code" if held(code) != was else self._of_space(each)
        return "is not the function that its file makes"

    def _of_space(self, function: types.FunctionType) -> str:
        for space in self._spaces:
            if function.__globals__ is space.names:
                return space.complaint()
        return "runs in a module that is not its file's"

    def stands_at(self, function: Any, place: Place) -> bool:
        """Return True if a module of this file has exactly this callable at a place."""
        plain = getattr(function, "__func__", function)
        found = [space.at(place) for space in self._spaces]
        return any(plain is each or plain is function_of(each) for each in found)


class Space:
    """One module of a test file, with its contents directly after it was executed."""

    def __init__(
        self, names: dict[str, Any], bound: set[str], bodies: Mapping[str, set[str]]
    ) -> None:
        self.names = names
        self._bound = {name: seen(names[name]) for name in bound if name in names}
        self._members: dict[str, tuple[frozenset[str], dict[str, tuple[Any, int, int]]]] = {}
        """The own names of each class, and its functions."""
        self._odd = ""
        for name, body in bodies.items():
            if name in self._bound and isinstance(names[name], type):
                members = vars(names[name])
                functions = {key: seen(each) for key, each in members.items() if function_of(each)}
                self._members[name] = frozenset(members), functions
                if any(is_runners(names[name], key) for key in members.keys() - body):
                    self._odd = name

    def at(self, place: Place) -> Any:
        """Return the present object at a place."""
        found = self.names.get(place[0])
        for name in place[1:]:
            above = getattr(found, "__mro__", ())
            found = next((vars(each)[name] for each in above if name in vars(each)), None)
        return found

    def complaint(self) -> str:
        if self.names.get("__builtins__") not in (builtins, vars(builtins)):
            return "has builtins of its own"
        has_own = self.names.get("@py_builtins", builtins) is not builtins
        if has_own or "AssertionError" in self.names:
            return "has assertions of its own"
        changed = self._odd or next(self._changed(), "")
        return f"had {changed} exchanged" if changed else ""

    def _changed(self) -> Iterator[str]:
        for name, was in self._bound.items():
            now = self.names.get(name)
            own = getattr(function_of(now), "__globals__", None) is self.names
            if now is not was[0] or (own and seen(now) != was):
                yield name
        for name, (keys, functions) in self._members.items():
            made = self._bound[name][0]
            now = vars(made)
            if any(key not in now or seen(now[key]) != was for key, was in functions.items()):
                yield name
            if any(is_runners(made, key) for key in now.keys() - keys):
                yield name


def is_runners(made: type, name: str) -> bool:
    """Return True if a method of a class overrides one of the runner's own classes."""
    function = function_of(vars(made)[name])
    if function is None and not callable(vars(made)[name]):
        return False
    home = getattr(function, "__globals__", {}).get("__name__", "")
    if "__pytest_" in name and home.partition(".")[0] in RUNNERS:
        return False  # pytest before 8.2 adds its own fixtures to test classes
    above = (each for each in made.__mro__[1:] if name in vars(each))
    return any(each.__module__.partition(".")[0] in RUNNERS for each in above)


def behind(function: Any) -> Iterator[types.FunctionType]:
    """Yield a function, and those that its decorators wrap."""
    found: list[Any] = [function]
    known: list[Any] = []
    while found and len(known) < MOST_BEHIND:
        each = found.pop(0)
        each = getattr(each, "__func__", each)
        if not callable(each) or any(each is other for other in known):
            continue
        known.append(each)
        if isinstance(each, types.FunctionType):
            yield each
            found += [cell.cell_contents for cell in each.__closure__ or () if is_filled(cell)]
        found += [getattr(each, name) for name in ("__wrapped__", "func") if hasattr(each, name)]
        found.append(getattr(getattr(each, "hypothesis", None), "inner_test", None))


def is_filled(cell: Any) -> bool:
    """Return True if a closure's cell has a value."""
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True


def names_bound(tree: ast.Module) -> set[str]:
    """Return the names that a file binds exactly once, or only by imports."""
    imported: set[str] = set()
    others: Counter[str] = Counter()
    for node in ast.walk(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            imported |= {each.asname or each.name.partition(".")[0] for each in node.names}
        elif isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            others[node.id] += 1
        elif isinstance(node, ast.Global):
            others.update(2 * node.names)
        elif isinstance(node, (*FUNCTIONS, ast.ClassDef)):
            others[node.name] += 1
    once = {name for name in names_in(tree) if others[name] == 1 and name not in imported}
    return (imported - others.keys()) | once


def names_in(body: ast.AST) -> Iterator[str]:
    """Yield the names that a module or a class binds outside of its functions."""
    for node in ast.iter_child_nodes(body):
        if isinstance(node, (*FUNCTIONS, ast.ClassDef)):
            yield node.name
        elif isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            yield node.id
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            yield from (each.asname or each.name.partition(".")[0] for each in node.names)
        elif not isinstance(node, ast.Lambda):
            yield from names_in(node)
