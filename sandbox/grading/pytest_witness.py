"""Runs pytest and reports to a supervisor: a program, run in the interpreter of the tests.

Its text follows that of `pytest_guard` on the standard input of `python -s -S -`, started outside
of the tree under test. Only the interpreter's library and pytest can be imported; no module of ours
can. Code of `.pth` files and `sitecustomize`, and the tree itself, are made available after pytest
and its plugins have been imported and recorded. So nothing in the tree can replace them, and entry
points in the tree add no plugin.

A report is a line with a JSON array, which starts with a token that only this process and its
supervisor have. It is either only `[token, "missing", why]`, or `[token, "collected", tests]`,
`[token, "unread", place]`, `[token, "test", test, phase, outcome, expected, where]`, `[token,
"control", test, phase, outcome]` and `[token, "end", exit code, failures, changed]`. `where` is the
file that raised a skip or an expected failure; it is empty if pytest did, for a mark. Code in this
process could forge reports. It is detected by the changes that this requires (`pytest_guard`), and
by control tests, some of which must fail. These run last, in a session of their own without
settings of the tree.

The tree's options (`addopts`) apply if this pytest knows all of them.

With `alone` in the plan, each of its tests runs in a fork with a token of its own, without control
tests.
"""

from __future__ import annotations

import importlib
import json
import os
import site
import sys
import unittest
import warnings
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rollcall.sandbox.grading.pytest_files import RUNNERS
    from rollcall.sandbox.grading.pytest_guard import Guard, kept_files
# In the program, the text of pytest_guard precedes this one.

LOADED = ("_pytest.assertion.rewrite", "unittest.case")
"""Modules that pytest imports late; they are imported before the tree is on the path."""
USAGE = 4
"""pytest's exit code for an unknown option."""
IN_THIS_PROCESS = {"xdist.plugin": "-n0", "pytest_cov.plugin": "--no-cov"}
"""Options of plugins that keep the tests in this process, and untraced."""
ASKED: tuple[type, ...] = ()
"""Exceptions that skip a test or mark it as failing as expected; set when pytest is imported."""


class Witness:
    """A plugin that reports the outcome of each phase of each test."""

    def __init__(self, reports: int, token: str, guard: Guard, only: str = "") -> None:
        self._reports = reports
        self._token = token
        self._guard = guard
        self._only = only
        self._session: Any = None
        self._raised: dict[tuple[str, str], str] = {}

    def tell(self, *words: object) -> None:
        line = json.dumps([self._token, *words]).encode() + b"\n"
        while line:
            line = line[os.write(self._reports, line) :]

    def pytest_plugin_registered(self, plugin: Any, manager: Any) -> None:
        self._guard.registered(plugin, manager)

    def pytest_itemcollected(self, item: Any) -> None:
        self._guard.collected(item)

    def pytest_collection_finish(self, session: Any) -> None:
        if self._only:
            session.items[:] = [item for item in session.items if item.nodeid == self._only][:1]
        self._session = session
        self.tell("collected", [item.nodeid for item in session.items])

    def pytest_runtest_setup(self, item: Any) -> None:
        self._guard.look(item, "setup")

    def pytest_runtest_call(self, item: Any) -> None:
        self._guard.look(item, "call")

    def pytest_runtest_teardown(self, item: Any) -> None:
        self._guard.look(item, "teardown")

    def pytest_runtest_makereport(self, item: Any, call: Any) -> None:
        if call.excinfo is not None and isinstance(call.excinfo.value, ASKED):
            place = raised_in(call.excinfo.tb)
            self._raised[item.nodeid, call.when] = self._guard.below(place)

    def pytest_runtest_logreport(self, report: Any) -> None:
        expected = hasattr(report, "wasxfail")
        phase = "subtest" if hasattr(report, "context") else report.when
        if report.outcome == "passed":
            self._guard.reported(report.nodeid, phase)
        where = self._raised.pop((report.nodeid, report.when), "")
        self.tell("test", report.nodeid, phase, report.outcome, expected, where)

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed:
            self.tell("unread", report.nodeid)

    def failures(self) -> int:
        """Return the number of failures by the session's own count."""
        return -1 if self._session is None else int(self._session.testsfailed)

    def has_begun(self) -> bool:
        """Return True if the collection has finished."""
        return self._session is not None


class ControlWitness:
    """A plugin that reports the outcomes of control tests."""

    def __init__(self, witness: Witness) -> None:
        self._witness = witness

    def pytest_runtest_logreport(self, report: Any) -> None:
        self._witness.tell("control", report.nodeid, report.when, report.outcome)


def raised_in(traceback: Any) -> str:
    """Return the file of the innermost code that is not a runner's; empty if there is none."""
    place = ""
    while traceback is not None:
        frame, traceback = traceback.tb_frame, traceback.tb_next
        if str(frame.f_globals.get("__name__")).partition(".")[0] not in RUNNERS:
            place = frame.f_code.co_filename
    return str(place)


def installed_plugins() -> list[str]:
    """Import the installed plugins of pytest, and return their modules."""
    from importlib.metadata import entry_points

    found: Any = entry_points()
    if hasattr(found, "select"):
        found = found.select(group="pytest11")
    else:  # before Python 3.10
        found = found.get("pytest11", ())
    modules = [entry.value.partition(":")[0].strip() for entry in found]
    for module in modules:
        importlib.import_module(module)
    return modules


def find_packages(tree: str) -> list[str]:
    """Put installed packages on the path; return lines of `.pth` files that must run later."""
    late: list[str] = []

    def read_paths(directory: str, name: str, known: Any) -> None:
        with open(os.path.join(directory, name), "rb") as file:
            for line in file.read().decode("utf-8", "replace").splitlines():
                path = os.path.join(directory, line.strip())
                if line.startswith(("import ", "import\t")):
                    late.append(line)
                elif line.strip() and line[0] != "#" and os.path.exists(path):
                    (late if is_below(path, tree) else sys.path).append(path)

    kept = site.addpackage, site.execsitecustomize, site.execusercustomize
    site.addpackage = read_paths  # type: ignore[assignment]
    site.execsitecustomize = site.execusercustomize = lambda: None
    site.main()
    site.addpackage, site.execsitecustomize, site.execusercustomize = kept
    return late


def run_late(lines: list[str]) -> None:
    """Run the code that the interpreter's start would have run, after pytest was recorded."""
    for line in lines:
        if line.startswith("import"):
            exec(line, {})  # like the interpreter itself
        elif line not in sys.path:
            sys.path.append(line)
    site.execsitecustomize()


def is_below(path: str, tree: str) -> bool:
    return os.path.realpath(path).startswith(f"{os.path.realpath(tree)}/")


def lay_paths(paths: list[str]) -> None:
    """Put the tree on the path: before installed packages, after the interpreter's library."""
    installed = [number for number, path in enumerate(sys.path) if path.endswith("-packages")]
    place = installed[0] if installed else len(sys.path)
    sys.path[place:place] = paths


def hooks_in_order(hookimpl: Any) -> None:
    """Make the witness's hooks the first ones, and that of the teardown the last.

    Its reports must precede the terminal reporter, which turns a passed test with failed subtests
    into a failure after the session has counted it.
    """
    for hook in ("runtest_logreport", "runtest_setup", "runtest_call", "runtest_makereport"):
        hookimpl(tryfirst=True)(getattr(Witness, f"pytest_{hook}"))
    hookimpl(tryfirst=True)(Witness.pytest_collection_finish)
    hookimpl(tryfirst=True)(Witness.pytest_itemcollected)
    hookimpl(trylast=True)(Witness.pytest_runtest_teardown)


def run_tests(argv: list[str], witness: Witness, guard: Guard) -> int:
    """Run the tests; without the tree's own options if pytest does not know one of them."""
    import pytest

    code = int(pytest.main([*argv], plugins=[witness]))  # pytest changes the list
    if code == USAGE and not witness.has_begun():
        guard.begin_again()
        code = int(pytest.main([*argv, "-o", "addopts="], plugins=[witness]))
    sys.stdout.flush()
    sys.stderr.flush()
    return code


def run_controls(place: str, names: list[str], witness: Witness) -> None:
    """Run the control tests by the same pytest, outside of the tree and without its settings."""
    import pytest

    os.chdir(place)
    for name in [name for name in os.environ if name.startswith("PYTEST_")]:
        del os.environ[name]
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    warnings.simplefilter("ignore")
    sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    words = ["-q", "-W", "ignore", "-p", "no:cacheprovider", "--noconftest", f"--rootdir={place}"]
    pytest.main([*words, "-c", "controls.ini", *names], plugins=[ControlWitness(witness)])


def fork_for(alone: list[list[str]], witness: Witness) -> None:
    """Fork a process for each of these tests and end this one; without tests, return."""
    for test, token in alone:
        if os.fork() == 0:
            witness._only, witness._token = test, token
            return
        os.wait()
    if alone:
        os._exit(0)


def main(plan: dict[str, Any]) -> None:
    """Run pytest by the plan; never returns, and runs no exit handlers."""
    sys.path[:] = [path for path in sys.path if path]
    os.set_inheritable(plan["reports"], False)
    tree = os.path.realpath(plan["cwd"])
    digests = kept_files(tree, plan["named"])
    digests |= {os.path.join(tree, name): digest for name, digest in plan["digests"].items()}
    guard = Guard(digests, plan["closely"], f"{tree}/")
    witness = Witness(plan["reports"], plan["token"], guard)
    try:
        late = find_packages(tree)
        import pytest

        plugins = installed_plugins() if plan["plugins"] else []
    except ImportError as error:
        witness.tell("missing", str(error))
        os._exit(1)
    from _pytest.config import default_plugins

    for name in (*LOADED, *(f"_pytest.{each}" for each in default_plugins)):
        importlib.import_module(name)
    globals()["ASKED"] = (pytest.skip.Exception, pytest.xfail.Exception, unittest.SkipTest)
    hooks_in_order(pytest.hookimpl)
    os.chdir(plan["cwd"])
    guard.begin()
    lay_paths(plan["paths"])
    os.environ["PYTHONPATH"] = os.pathsep.join(plan["paths"])  # for processes that tests start
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    words = [word for module in plugins for word in ("-p", module)]
    words += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]  # they are imported already
    words += [IN_THIS_PROCESS[module] for module in plugins if module in IN_THIS_PROCESS]
    fork_for(plan["alone"], witness)
    run_late(late)
    code = run_tests([*plan["argv"], *words], witness, guard)
    if plan["controls"]:
        run_controls(plan["place"], plan["controls"], witness)
    witness.tell("end", code, witness.failures(), guard.end())
    os._exit(code)
