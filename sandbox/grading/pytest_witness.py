"""Runs pytest and tells a supervisor what it saw: a program, run in the interpreter of the tests.

Its text is piped into `python -s -`, away from the tree under test, and with the interpreter's own
library and pytest alone; nothing of ours is there. pytest and its plugins are imported before the
tree can be found, so nothing in it stands in for them, and an entry point there names no plugin.

One JSON array a line, each beginning with a token that only this process and its supervisor have:
`[token, "missing", why]` and nothing else; else `[token, "collected", tests]`, `[token, "unread",
place]`, `[token, "test", test, phase, outcome, expected]` and `[token, "end", exit code, failures,
changed]`. What code in this very process can forge is found by what it changed: the parts of pytest
that decide (`DECIDE`) are compared with what they were, and some of the tests must fail.
"""

import importlib
import json
import os
import sys
from collections.abc import Iterator, Mapping
from types import FunctionType, ModuleType
from typing import Any

DECIDE = (
    "__main__", "_pytest.runner", "_pytest.main", "_pytest.reports", "_pytest.python",
    "_pytest.unittest",
    "_pytest.skipping", "_pytest.nodes", "_pytest.outcomes", "_pytest.fixtures",
    "_pytest.assertion.rewrite", "_pytest.config", "pluggy._callers", "pluggy._hooks",
    "pluggy._manager", "unittest.case", "builtins",
)  # fmt: skip
MOST_SAID = 3


class Witness:
    """A plugin that tells what becomes of each test."""

    def __init__(self, reports: int, token: str) -> None:
        self._reports = reports
        self._token = token
        self._session: Any = None

    def tell(self, *words: object) -> None:
        line = json.dumps([self._token, *words]).encode() + b"\n"
        while line:
            line = line[os.write(self._reports, line) :]

    def pytest_collection_finish(self, session: Any) -> None:
        self._session = session
        self.tell("collected", [item.nodeid for item in session.items])

    def pytest_runtest_logreport(self, report: Any) -> None:
        expected = hasattr(report, "wasxfail")
        phase = "subtest" if hasattr(report, "context") else report.when
        self.tell("test", report.nodeid, phase, report.outcome, expected)

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed:
            self.tell("unread", report.nodeid)

    def failures(self) -> int:
        """As the session counts them itself."""
        return -1 if self._session is None else int(self._session.testsfailed)


def parts() -> Mapping[str, tuple[int, int]]:
    """The functions that decide, each by what it is and by its code."""
    found = {}
    for name in DECIDE:
        module = sys.modules.get(name)
        for path, function in _functions(module) if module else ():
            code = getattr(function, "__code__", None)
            found[f"{name}.{path}"] = (id(function), id(code))
    return found


def _functions(module: ModuleType) -> Iterator[tuple[str, Any]]:
    for name, value in list(vars(module).items()):
        if isinstance(value, type):
            for inner, member in list(vars(value).items()):
                member = getattr(member, "__func__", getattr(member, "fget", member))
                if isinstance(member, FunctionType):
                    yield f"{name}.{inner}", member
        if callable(value):
            yield name, value


def changed(before: Mapping[str, tuple[int, int]]) -> list[str]:
    """The parts that are not what they were."""
    now = parts()
    return [name for name, was in before.items() if now.get(name) != was][:MOST_SAID]


def installed_plugins() -> list[str]:
    """The modules of pytest's plugins that this interpreter has, imported."""
    from importlib.metadata import entry_points

    modules = [entry.module for entry in entry_points(group="pytest11")]
    for module in modules:
        importlib.import_module(module)
    return modules


def lay_paths(paths: list[str]) -> None:
    """Let the tree be found before what is installed, and after the interpreter's own library."""
    installed = [number for number, path in enumerate(sys.path) if path.endswith("-packages")]
    place = installed[0] if installed else len(sys.path)
    sys.path[place:place] = paths


def main(plan: dict[str, Any]) -> None:
    """Run pytest as planned; never returns, and leaves nothing to be run at the exit."""
    sys.path[:] = [path for path in sys.path if path]
    os.set_inheritable(plan["reports"], False)
    witness = Witness(plan["reports"], plan["token"])
    try:
        import pytest

        plugins = installed_plugins() if plan["plugins"] else []
    except ImportError as error:
        witness.tell("missing", str(error))
        os._exit(1)
    for name in DECIDE:
        importlib.import_module(name)
    # Before the terminal makes a failure of a test that passed and holds subtests that failed: the
    # session has counted it by then.
    pytest.hookimpl(tryfirst=True)(Witness.pytest_runtest_logreport)
    os.chdir(plan["cwd"])
    lay_paths(plan["paths"])
    os.environ["PYTHONPATH"] = os.pathsep.join(plan["paths"])  # for what tests start
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    before = parts()
    words = [word for module in plugins for word in ("-p", module)]
    code = int(pytest.main([*words, *plan["argv"]], plugins=[witness]))
    witness.tell("end", code, witness.failures(), changed(before))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
