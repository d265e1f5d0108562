"""Watches, within the interpreter of the tests, that pytest and the tests are what they were.

A part of the witness's program: its text stands before that of `pytest_witness`, and nothing else
of ours is there. A guard begins when pytest is imported and the tree cannot be found yet. A test's
function must be one that its file makes, in a module of that file whose imported names and builtins
are those of the start. Functions and classes of pytest, pluggy and unittest must stay what they
were, and no plugin of the code under test may decide on an outcome.
"""

from __future__ import annotations

import ast
import builtins
import hashlib
import sys
import types
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

RUNNERS = ("_pytest", "pytest", "pluggy", "unittest", "__main__")
"""Packages that decide what becomes of a test."""
MOST_SAID = 3
OWN_METHODS = ("runtest", "setup", "teardown", "repr_failure")
"""An item has these by its class, and none of its own."""
DECIDING = (
    "pytest_runtest_protocol", "pytest_runtest_call", "pytest_runtest_makereport",
    "pytest_runtest_logreport", "pytest_pyfunc_call",
)  # fmt: skip
MOST_BEHIND = 64
"""So many callables are looked through for the function of a test."""


class Parts:
    """The functions and classes of modules, each by what it is and what it does."""

    def __init__(self, modules: Iterable[str]) -> None:
        self._parts: list[tuple[str, Mapping[str, Any], str, tuple[Any, int, int]]] = []
        self._classes: list[tuple[str, Mapping[str, Any], frozenset[str]]] = []
        self._known: set[int] = set()
        """Classes stand under many names, and are taken once."""
        for name in modules:
            for key, value in list(vars(sys.modules[name]).items()):
                self._take(name, vars(sys.modules[name]), key, value)
        self._installed = {id(vars(each)) for each in list(sys.modules.values())}

    def _take(self, name: str, space: Mapping[str, Any], key: str, value: Any) -> None:
        if isinstance(value, type) and id(value) not in self._known:
            self._known.add(id(value))
            members = vars(value)
            functions = frozenset(each for each in members if function_of(members[each]))
            self._classes.append((f"{name}.{key}", members, functions))
            for each in functions:
                self._parts.append((f"{name}.{key}.{each}", members, each, seen(members[each])))
        if callable(value) or isinstance(value, tuple):
            self._parts.append((f"{name}.{key}", space, key, seen(value)))

    def changed(self) -> Iterator[str]:
        """The parts that are not what they were."""
        for name, space, key, was in self._parts:
            now = space.get(key)
            if (now is not was[0] or seen(now) != was) and not is_legacy(name, now):
                yield name
        for name, members, known in self._classes:
            for key in list(members):
                function = None if key in known else function_of(members[key])
                # What a plugin adds when it is configured was installed before.
                if function and not self.has_installed(function):
                    yield f"{name}.{key}"

    def has_installed(self, function: types.FunctionType) -> bool:
        """Whether a function is of a module that was there before the tree could be found."""
        return id(function.__globals__) in self._installed


def function_of(value: Any) -> types.FunctionType | None:
    """The function behind a member of a class; None for anything else."""
    value = getattr(value, "__func__", getattr(value, "fget", value))
    return value if isinstance(value, types.FunctionType) else None


def is_legacy(name: str, value: Any) -> bool:
    """Whether pytest has put a method of its older paths in the place of one of its own."""
    function, legacy = function_of(value), sys.modules.get("_pytest.legacypath")
    named = "_".join(name.split(".")[-2:])
    known = legacy is not None and getattr(legacy, named, None) is value
    return known and function is not None and function.__name__ == named


def seen(value: Any) -> tuple[Any, int, int]:
    """A value, and which code and which defaults its function has."""
    function = function_of(value)
    return value, id(getattr(function, "__code__", 0)), id(getattr(function, "__defaults__", 0))


class TestFile:
    """One file of the reference's tests, as pytest compiles and runs it."""

    __test__ = False

    def __init__(self, source: bytes, code: types.CodeType) -> None:
        self._codes: dict[str, list[types.CodeType]] = {}
        self._gather(code)
        self._imports = imports(source)
        self._spaces: list[tuple[dict[str, Any], dict[str, Any]]] = []
        """The names of each of its modules, and what it imported."""

    def _gather(self, code: types.CodeType) -> None:
        for each in code.co_consts:
            if isinstance(each, types.CodeType):
                self._codes.setdefault(each.co_name, []).append(each)
                self._gather(each)

    def ran(self, space: dict[str, Any]) -> None:
        """Note a module of this file that has just been run."""
        self._spaces.append((space, {name: space[name] for name in self._imports if name in space}))

    def complaint(self, function: Any, name: str) -> str:
        """What is wrong with the function of a test; empty where nothing is."""
        made = self._codes.get(name)
        if not made:
            return ""  # it was made while the file ran, or is inherited from another file
        for each in behind(function):
            if any(each.__code__ is code for code in made):
                return self._of_space(each)
        return "is not the function that its file makes"

    def _of_space(self, function: types.FunctionType) -> str:
        for space, imported in self._spaces:
            if function.__globals__ is not space:
                continue
            if space.get("__builtins__") not in (builtins, vars(builtins)):
                return "has builtins of its own"
            if space.get("@py_builtins", builtins) is not builtins or "AssertionError" in space:
                return "has assertions of its own"
            changed = [name for name in imported if space.get(name) is not imported[name]]
            return f"had {changed[0]} exchanged" if changed else ""
        return "runs in a module that is not its file's"


def behind(function: Any) -> Iterator[types.FunctionType]:
    """A function, and those that its decorators hold."""
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
    """Whether a closure's cell holds anything."""
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True


def imports(source: bytes) -> set[str]:
    """The names that a file binds by imports, and by nothing else."""
    bound, other = set(), set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            bound |= {each.asname or each.name.partition(".")[0] for each in node.names}
        elif isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            other.add(node.id)
        elif isinstance(node, ast.Global):
            other |= set(node.names)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            other.add(node.name)
    return bound - other


class Guard:
    """Watches one run of pytest; what it finds is told when the run ends."""

    def __init__(self, digests: Mapping[str, str], closely: Iterable[str], tree: str) -> None:
        self._digests = digests
        """By absolute path the sha256 of a test file."""
        self._closely = frozenset(closely)
        """Tests beside which all parts are compared."""
        self._tree = tree
        self._files: dict[str, TestFile] = {}
        self._traced = sys.gettrace(), sys.getprofile()
        self._wrong: list[str] = []

    def begin(self) -> None:
        """Follow how pytest loads test files, then remember all parts."""
        from _pytest.assertion import rewrite

        if hasattr(rewrite, "_rewrite_test") and hasattr(rewrite, "_read_pyc"):
            self._follow(rewrite)
        names = [name for name in list(sys.modules) if name.partition(".")[0] in RUNNERS]
        self._parts, self._builtins = Parts(names), Parts(["builtins"])

    def _follow(self, rewrite: Any) -> None:
        compile_, run = rewrite._rewrite_test, rewrite.AssertionRewritingHook.exec_module

        def compile_and_note(path: Any, *rest: Any) -> Any:
            stat, code = compile_(path, *rest)
            self._note(str(path), code)
            return stat, code

        def run_and_note(hook: Any, module: types.ModuleType) -> None:
            run(hook, module)
            file = self._files.get(str(getattr(module.__spec__, "origin", "")))
            if file:
                file.ran(vars(module))

        rewrite._rewrite_test = compile_and_note
        rewrite.AssertionRewritingHook.exec_module = run_and_note
        rewrite._read_pyc = lambda *_, **__: None  # what is cached may not be the file's

    def _note(self, path: str, code: types.CodeType) -> None:
        if path not in self._digests:
            return
        with open(path, "rb") as file:
            source = file.read()
        if hashlib.sha256(source).hexdigest() != self._digests[path]:
            self._say(f"{self.below(path)}, which is not the file that was put there")
        self._files[path] = TestFile(source, code)

    def below(self, path: str) -> str:
        """A path as it is named below the tree, if it is."""
        return path[len(self._tree) :] if path.startswith(self._tree) else path

    def registered(self, plugin: Any) -> None:
        """Note a plugin of the code under test that has a word in what becomes of tests."""
        if str(getattr(plugin, "__file__", "")).endswith("/conftest.py"):
            return
        for name in DECIDING:
            function = function_of(getattr(plugin, name, None))
            if function and not self._parts.has_installed(function):
                who = getattr(plugin, "__name__", type(plugin).__name__)
                self._say(f"{name}, which {who} has")
                return

    def look(self, item: Any) -> None:
        """Look at a test, and closely at some: before its setup, before its call, after it."""
        if item.nodeid in self._closely:
            self._look_closely(item)
        file = self._files.get(str(getattr(item, "path", None) or item.fspath))
        function = getattr(item, "obj", None)
        if file and function is not None:
            name = getattr(item, "originalname", None) or item.name.partition("[")[0]
            wrong = file.complaint(function, name)
            if wrong:
                self._say(f"{item.nodeid} {wrong}")

    def _look_closely(self, item: Any) -> None:
        for name in OWN_METHODS:
            if name in vars(item):
                self._say(f"{item.nodeid} has a {name} of its own")
        if (sys.gettrace(), sys.getprofile()) != self._traced:
            self._say(f"{item.nodeid} is traced")
        self._say(*self._parts.changed())

    def _say(self, *what: str) -> None:
        for each in what:
            if each not in self._wrong and len(self._wrong) < MOST_SAID:
                self._wrong.append(each)

    def end(self) -> list[str]:
        """Everything that was not as it must be."""
        self._say(*self._parts.changed(), *self._builtins.changed())
        return self._wrong
