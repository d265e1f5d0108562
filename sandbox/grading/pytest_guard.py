"""Checks, inside the interpreter of the tests, that pytest and the tests were not changed.

This is the second part of the witness's program, between `pytest_files` and `pytest_witness`. No
other module of ours can be imported there. The guard starts after pytest is imported, before code
of the tree can be imported. A test's function must be the one at its place in its file, in a module
of that file whose contents have not changed since it was executed. For the tests to mend there are
further checks: functions and classes of pytest, pluggy and unittest are unchanged; the item has a
known class, and the parameters and fixtures with which it was collected; and every hook that
decides on outcomes belongs to an installed plugin or to a `conftest.py` of the tree.
"""

from __future__ import annotations

import gc
import hashlib
import inspect
import os
import sys
import types
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rollcall.sandbox.grading.pytest_files import RUNNERS, TestFile, function_of, place_of, seen
# In the program, the text of pytest_files precedes this one.

MOST_SAID = 3
PHASES = ("setup", "call", "teardown")
DECIDING = (
    "pytest_runtest_protocol",
    "pytest_runtest_call",
    "pytest_runtest_makereport",
    "pytest_runtest_logreport",
    "pytest_pyfunc_call",
)
PATCHED = ("open", "input", "print", "__import__")
"""Builtins that module-wide fixtures replace; these are compared only at the end."""


class Installed:
    """The code that was loaded before code of the tree could be imported."""

    def __init__(self) -> None:
        self._spaces = {id(vars(each)) for each in list(sys.modules.values())}
        self._kept = [each for each in gc.get_objects() if isinstance(each, types.FunctionType)]
        self._codes: dict[int, types.CodeType] = {}
        for function in self._kept:
            self._gather(function.__code__)
        self._items = set(subclasses(sys.modules["_pytest.nodes"].Item))

    def _gather(self, code: types.CodeType) -> None:
        if id(code) not in self._codes:
            self._codes[id(code)] = code
            for inner in code.co_consts:
                if isinstance(inner, types.CodeType):
                    self._gather(inner)

    def has(self, function: types.FunctionType) -> bool:
        return id(function.__globals__) in self._spaces and id(function.__code__) in self._codes

    def has_item(self, kind: type) -> bool:
        return kind in self._items


def subclasses(kind: type) -> Iterator[type]:
    yield kind
    below: list[type] = kind.__subclasses__()
    for each in below:
        yield from subclasses(each)


class Parts:
    """The functions and classes of modules, by identity, code and defaults."""

    def __init__(self, modules: Iterable[str], installed: Installed) -> None:
        self._parts: list[tuple[str, Mapping[str, Any], str, tuple[Any, int, int]]] = []
        self._classes: list[tuple[str, Mapping[str, Any], frozenset[str]]] = []
        self._known: set[int] = set()
        """Ids of classes already recorded, since one class may have several names."""
        for name in modules:
            for key, value in list(vars(sys.modules[name]).items()):
                self._take(name, vars(sys.modules[name]), key, value)
        self._installed = installed

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

    def changed(self, but: Iterable[str] = ()) -> Iterator[str]:
        """Yield the names of parts that have changed."""
        for name, space, key, was in self._parts:
            if key in but:
                continue
            now = space.get(key)
            if (now is not was[0] or seen(now) != was) and not is_legacy(name, now):
                yield name
        for name, members, known in self._classes:
            for key in list(members):
                function = None if key in known else function_of(members[key])
                # Plugins add functions when they are configured, from code installed before.
                if function and not self._installed.has(function):
                    yield f"{name}.{key}"


def is_legacy(name: str, value: Any) -> bool:
    """Return True if pytest itself replaced one of its methods by a legacy one for old paths."""
    function, legacy = function_of(value), sys.modules.get("_pytest.legacypath")
    named = "_".join(name.split(".")[-2:])
    known = legacy is not None and getattr(legacy, named, None) is value
    return known and function is not None and function.__name__ == named


class Collected:
    """The parameters and fixtures with which a test to mend was collected."""

    def __init__(self, item: Any) -> None:
        self.item = item
        self._parameters = dict(self._now())
        fixtures = getattr(getattr(item, "_fixtureinfo", None), "name2fixturedefs", {})
        self._fixtures = {
            name: [(each, seen(each.func)) for each in fixtures[name]] for name in fixtures
        }

    def _now(self) -> Mapping[str, Any]:
        return getattr(getattr(self.item, "callspec", None), "params", {})

    def complaint(self, installed: Installed) -> str:
        now, was = self._now(), self._parameters
        if now.keys() != was.keys() or any(now[name] is not was[name] for name in was):
            return "has other parameters than its file gives it"
        for name, known in self._fixtures.items():
            for fixture, func in known:
                wrapper = function_of(fixture.func)
                if seen(fixture.func) != func and not (wrapper and installed.has(wrapper)):
                    return f"has a fixture {name} of another function"
        return ""


class Guard:
    """Watches one run of pytest; returns its findings when the run ends."""

    def __init__(self, digests: Mapping[str, str], closely: Iterable[str], tree: str) -> None:
        self._digests = digests
        """The sha256 of each test file, by absolute path."""
        self._closely = frozenset(closely)
        """Tests at which all parts are compared."""
        self._tree = tree
        self._files: dict[str, TestFile] = {}
        self._collected: dict[str, Collected] = {}
        self._looked: set[tuple[str, str]] = set()
        self._lent: list[Any] = []
        """Hooks of each `conftest.py` directly after it was executed."""
        self._calls: tuple[Any, ...] = ()
        self._rewrites = False
        self._traced = sys.gettrace(), sys.getprofile()
        self._wrong: list[str] = []

    def begin(self) -> None:
        """Observe how pytest loads test files, and record all parts."""
        from _pytest.assertion import rewrite

        if hasattr(rewrite, "_rewrite_test") and hasattr(rewrite, "_read_pyc"):
            self._follow(rewrite)
        names = [name for name in list(sys.modules) if name.partition(".")[0] in RUNNERS]
        self._installed = Installed()
        self._parts = Parts(names, self._installed)
        self._builtins = Parts(["builtins"], self._installed)

    def begin_again(self) -> None:
        """Accept another plugin manager, since the first one ended before any test."""
        self._calls = ()

    def _follow(self, rewrite: Any) -> None:
        compile_, run = rewrite._rewrite_test, rewrite.AssertionRewritingHook.exec_module

        def compile_and_note(path: Any, *rest: Any) -> Any:
            stat, code = compile_(path, *rest)
            self._note(str(path), code)
            return stat, code

        def run_and_note(hook: Any, module: types.ModuleType) -> None:
            self._rewrites = True
            run(hook, module)
            file = self._files.get(str(getattr(module.__spec__, "origin", "")))
            if file:
                file.ran(vars(module))
                self._lent += [vars(module).get(name) for name in DECIDING]

        rewrite._rewrite_test = compile_and_note
        rewrite.AssertionRewritingHook.exec_module = run_and_note
        rewrite._read_pyc = lambda *_, **__: None  # a cached code may not be the file's

    def _note(self, path: str, code: types.CodeType) -> None:
        if path not in self._digests:
            return
        with open(path, "rb") as file:
            source = file.read()
        if hashlib.sha256(source).hexdigest() != self._digests[path]:
            self._say(f"{self.below(path)}, which is not the file that was put there")
        self._files[path] = TestFile(source, code)

    def below(self, path: str) -> str:
        """Return a path relative to the tree, if it is below it."""
        return path[len(self._tree) :] if path.startswith(self._tree) else path

    def registered(self, plugin: Any, manager: Any) -> None:
        """Report a plugin of the code under test that has a hook which decides on outcomes."""
        self._calls = self._calls or called_by(manager)
        for name in DECIDING:
            hook = inspect.getattr_static(plugin, name, None)
            if hook is not None and not self._is_trusted(hook, plugin):
                who = getattr(plugin, "__name__", type(plugin).__name__)
                self._say(f"{name}, which {who} has")
                return

    def _is_trusted(self, hook: Any, plugin: Any) -> bool:
        """Return True if a hook belongs to an installed plugin, or to a file of the reference."""
        function = function_of(hook)
        if function is None:
            return False
        if self._installed.has(function) or any(function is function_of(e) for e in self._lent):
            return True
        path = str(getattr(plugin, "__file__", ""))
        if not self._rewrites:  # then the code of files is not known
            return path in self._digests
        return any(file.makes(function) for file in self._files.values())

    def collected(self, item: Any) -> None:
        """Record the parameters and fixtures of a test to mend when it is collected."""
        if item.nodeid in self._closely:
            self._collected.setdefault(item.nodeid, Collected(item))

    def look(self, item: Any, phase: str) -> None:
        """Check a test before its setup, before its call and after it; more closely if to mend."""
        self._looked.add((item.nodeid, phase))
        if item.nodeid in self._closely:
            self._look_closely(item, phase)
        path, place = place_of(item.nodeid)
        file = self._files.get(self._tree + path)
        if file is None and self._rewrites and self._tree + path in self._digests:
            self._say(f"{item.nodeid} was not loaded from its file")
        function = getattr(item, "obj", None)
        if file is None or function is None:
            return
        wrong = file.complaint(function, place)
        plain = function_of(function)
        if not wrong and not file.stands_at(function, place):
            wrapped = plain is not None and self._installed.has(plain)
            wrong = "" if wrapped else "is not the function that its file makes"
        if wrong:
            self._say(f"{item.nodeid} {wrong}")

    def _look_closely(self, item: Any, phase: str) -> None:
        who = item.nodeid
        for each in (item, item.session, item.config, item.config.pluginmanager):
            self._say(*(f"{who} has a {name} of its own" for name in shadowing(each)))
        if not self._is_known(type(item)):
            self._say(f"{who} is an item of another class")
        if (sys.gettrace(), sys.getprofile()) != self._traced:
            self._say(f"{who} is traced")
        if called_by(item.config.pluginmanager) != self._calls:
            self._say("hooks are called by another function")
        for name in DECIDING:
            for each in getattr(item.config.hook, name).get_hookimpls():
                if not self._is_trusted(each.function, each.plugin):
                    self._say(f"{name}, which {each.plugin_name} has")
        if phase == "setup":
            collected = self._collected.get(who)
            if collected is None or collected.item is not item:
                self._say(f"{who} was not collected")
            else:
                wrong = collected.complaint(self._installed)
                self._say(*([f"{who} {wrong}"] if wrong else []))
            self._say(*self._builtins.changed(PATCHED))
        self._say(*self._parts.changed())

    def _is_known(self, kind: type) -> bool:
        """Return True if a class of items is installed, or defined in a file of the reference."""
        if self._installed.has_item(kind) or not self._rewrites:
            return True
        functions = [each for each in map(function_of, vars(kind).values()) if each]
        made = all(any(f.makes(each) for f in self._files.values()) for each in functions)
        return (
            bool(functions)
            and made
            and all(self._is_known(e) for e in kind.__bases__ if e is not object)
        )

    def reported(self, test: str, phase: str) -> None:
        """Report a phase of a test to mend that passed without having been checked."""
        if test in self._closely and phase in PHASES and (test, phase) not in self._looked:
            self._say(f"{test} was not looked at")

    def _say(self, *what: str) -> None:
        for each in what:
            if each not in self._wrong and len(self._wrong) < MOST_SAID:
                self._wrong.append(each)

    def end(self) -> list[str]:
        """Return all findings."""
        self._say(*self._parts.changed(), *self._builtins.changed())
        return self._wrong


def called_by(manager: Any) -> tuple[Any, ...]:
    """Return the functions with which a plugin manager calls the deciding hooks."""
    callers = [getattr(manager.hook, name, None) for name in DECIDING]
    how = [getattr(each, "_hookexec", None) for each in callers]
    return (getattr(manager, "_inner_hookexec", None), *callers, *how)


def shadowing(thing: Any) -> Iterator[str]:
    """Yield methods of its class that an object overrides by attributes of its own."""
    for name in getattr(thing, "__dict__", {}):
        if isinstance(inspect.getattr_static(type(thing), name, None), types.FunctionType):
            yield name


def kept_files(tree: str, named: Iterable[str]) -> dict[str, str]:
    """Return the sha256 of each `conftest.py` of the tree and of named files, by absolute path."""
    found = [os.path.join(tree, name) for name in named]
    for directory, folders, names in os.walk(tree):
        folders[:] = [each for each in folders if each not in (".git", "node_modules")]
        found += [os.path.join(directory, name) for name in names if name == "conftest.py"]
    digests = {}
    for path in found:
        if os.path.isfile(path):
            with open(path, "rb") as file:
                digests[path] = hashlib.sha256(file.read()).hexdigest()
    return digests
