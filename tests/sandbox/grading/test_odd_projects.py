"""Projects with settings of their own: the right patch earns 1 and an idle one 0 in each.

Their ini files choose options, names and folders of tests, their `conftest.py` chooses among the
items, and their tests leave links, pipes and barred folders in the tree, or much data.
"""

import asyncio
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import pytest

from rollcall.sandbox.boxes.box import driver
from rollcall.sandbox.boxes.tar_streams import of_files
from rollcall.sandbox.grading.grading import grade
from rollcall.sandbox.grading.reference import Reference
from rollcall.sandbox.grading.verdict import Verdict
from tests.support.tiers import cases, selected
from tests.support.tiny_package import BASE, Patches, reference

IT = "tests/test_sums.py::test_it"
HEAD = "import os\n\nimport pytest\n\nfrom tiny.sums import add, same\n\n\n"
ADDS = "def test_it():\n    assert add(2, 3) == 5\n"
KEPT = "\n\ndef test_kept():\n    assert same(1) == 1\n"
LATER = "\n\n{}def test_later():\n    assert same(1) == 2\n"
"""A test that fails, which the project leaves out."""
MUCH = bytes(100 << 20)
REPORTS = """import pytest


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    found = yield
    setattr(item, "rep_" + call.when, found.get_result())
"""
CHOOSES = """

def pytest_collection_modifyitems(config, items):
    kept = [each for each in items if each.name in ("test_it", "test_kept")]
    config.hook.pytest_deselected(items=[each for each in items if each not in kept])
    items[:] = kept
"""
LEAVES = """import os, pathlib
here = pathlib.Path("tests")
(here / "out").symlink_to("/etc")
(here / "nothing").symlink_to("nowhere")
os.mkfifo(here / "pipe")
(here / "barred").mkdir()
(here / "barred" / "test_barred.py").write_text("")
(here / "barred").chmod(0)
"""


def indented(text: str) -> str:
    return "".join(f"    {line}\n" for line in text.splitlines())


@dataclass(frozen=True)
class Project:
    """A project that differs from the tiny package, and how its tests are run."""

    ini: str = ""
    """Below `[tool:pytest]`."""
    tests: str = ADDS + KEPT
    files: Mapping[str, str | bytes] = field(default_factory=dict)
    """Beside those of the package."""
    command: str = "{python} -m pytest -q tests"
    mend: tuple[str, ...] = (IT,)
    keep: tuple[str, ...] = ("tests/test_sums.py::test_kept",)
    laid: Mapping[str, str] = field(default_factory=dict)
    """Test files beside `tests/test_sums.py`."""
    plugins: bool = False
    """Whether the plugins of the interpreter are loaded."""

    def reference(self) -> Reference:
        given = reference(
            command="PYTHONPATH=. " + self.command.format(python=sys.executable),
            env={} if self.plugins else {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
            fail_to_pass=self.mend,
            pass_to_pass=self.keep,
        )
        base = {**BASE, "setup.cfg": f"[tool:pytest]\n{self.ini}\n", **self.files}
        tests = {"tests/test_sums.py": HEAD + self.tests, **self.laid}
        return replace(given, base=tar(base), tests=tar(tests))


def tar(files: Mapping[str, str | bytes]) -> bytes:
    return of_files(
        {name: text if isinstance(text, bytes) else text.encode() for name, text in files.items()}
    )


MARKED = ADDS + KEPT + LATER.format("@pytest.mark.slow\n")
MARKERS = "markers = slow: it is\n"
PROJECTS: Mapping[str, Project] = {
    "-k leaves tests out": Project("addopts = -k 'not later'", ADDS + KEPT + LATER.format("")),
    "-k takes some": Project("addopts = -k 'test_it or kept'", ADDS + KEPT + LATER.format("")),
    "-m leaves tests out": Project(f"{MARKERS}addopts = -m 'not slow'", MARKED),
    "strict markers": Project(f"{MARKERS}addopts = --strict-markers --strict-config", MARKED),
    "plugins left out": Project("addopts = -p no:doctest -p no:cacheprovider -p no:nose"),
    "an absent plugin left out": Project("addopts = -p no:randomly"),
    "options of an absent plugin": Project("addopts = --cov=tiny --cov-report=xml"),
    "options of a plugin that is not loaded": Project("addopts = -n 2 --timeout=100"),
    "processes": Project("addopts = -n 2 --dist loadfile", plugins=True),
    "a plugin's options": Project("addopts = --timeout=100", plugins=True),
    "all warnings are errors": Project(
        "filterwarnings = error\naddopts = -W error", plugins=True
    ),
    "another import mode": Project(
        "addopts = --import-mode=importlib",
        laid={"tests/more/test_sums.py": HEAD + ADDS},
        mend=(IT, "tests/more/test_sums.py::test_it"),
    ),
    "doctests of modules": Project(
        "addopts = --doctest-modules --ignore=setup.py", command="{python} -m pytest -q",
        files={"setup.py": "raise SystemExit('no')\n"},
    ),
    "failed ones first": Project("addopts = --ff --nf -q"),
    "a cache of failures that a patch would not have": Project("addopts = --lf"),
    "an end at the first failure": Project(
        "addopts = -x --maxfail=1", LATER.format("").lstrip() + "\n\n" + ADDS + KEPT
    ),
    "loud options": Project("addopts = -vv -rA --tb=short --color=yes --durations=3 -s"),
    "reports on disk": Project("addopts = --junitxml=report.xml --basetemp=.tmp"),
    "logs on the terminal": Project("log_cli = true\nlog_level = DEBUG\nxfail_strict = true"),
    "a plugin of the tree's own": Project(
        "addopts = -p tests.helpers", "def test_it(two):\n    assert add(two, 3) == 5\n" + KEPT,
        files={"tests/__init__.py": ""},
        laid={
            "tests/__init__.py": "",
            "tests/helpers.py": "import pytest\n\n\n@pytest.fixture\ndef two():\n    return 2\n",
        },
    ),
    "a plugin of the tree's own that makes reports": Project(
        "addopts = -p tests.helpers", files={"tests/__init__.py": ""},
        laid={"tests/__init__.py": "", "tests/helpers.py": REPORTS},
    ),
    "other names of files": Project(
        "python_files = check_*.py", tests="", laid={"tests/check_sums.py": HEAD + ADDS + KEPT},
        mend=("tests/check_sums.py::test_it",), keep=("tests/check_sums.py::test_kept",),
    ),
    "other names of functions": Project(
        "python_functions = check_*", (ADDS + KEPT).replace("test_", "check_"),
        mend=("tests/test_sums.py::check_it",), keep=("tests/test_sums.py::check_kept",),
    ),
    "other names of classes": Project(
        "python_classes = *Suite",
        "class SumsSuite:\n    def test_it(self):\n        assert add(2, 3) == 5\n" + KEPT,
        mend=("tests/test_sums.py::SumsSuite::test_it",),
    ),
    "a folder of tests that the ini file names": Project(
        "testpaths = checks", tests="", command="{python} -m pytest -q",
        laid={"checks/test_sums.py": HEAD + ADDS + KEPT},
        mend=("checks/test_sums.py::test_it",), keep=("checks/test_sums.py::test_kept",),
    ),
    "folders that are passed over": Project(
        "norecursedirs = data", laid={"tests/data/test_bad.py": "import nothing_like_this\n"},
    ),
    "a conftest.py that chooses": Project(
        tests=ADDS + KEPT + LATER.format(""), files={"conftest.py": CHOOSES}
    ),
    "a conftest.py that refuses others": Project(
        files={"conftest.py": "import pytest\n\n\ndef pytest_collection_modifyitems(items):\n"
               "    if {each.name for each in items} - {'test_it', 'test_kept'}:\n"
               "        raise pytest.UsageError('a test that nobody knows')\n"},
    ),
    "a conftest.py that shuffles": Project(
        files={"conftest.py": "import random\n\n\ndef pytest_collection_modifyitems(items):\n"
               "    random.shuffle(items)\n"},
    ),
    "a conftest.py that passes over files": Project(
        files={"conftest.py": "def pytest_ignore_collect(collection_path):\n"
               "    return collection_path.name.startswith('test_') and "
               "collection_path.name != 'test_sums.py'\n"},
    ),
    "a conftest.py that takes down reports": Project(files={"conftest.py": REPORTS}),
    "a conftest.py with items of its own": Project(
        files={"conftest.py": "import pytest\n\n\nclass Own(pytest.Function):\n"
               "    def runtest(self):\n        self.ran = True\n        super().runtest()\n\n\n"
               "def pytest_pycollect_makeitem(collector, name, obj):\n"
               "    if name == 'test_it':\n"
               "        return Own.from_parent(collector, name=name)\n"},
    ),
    "a conftest.py that fails what it does not know": Project(
        files={"conftest.py": "import pytest\n\n\n@pytest.fixture(autouse=True)\n"
               "def known(request):\n    assert request.node.name in ('test_it', 'test_kept')\n"},
    ),
    "a long conftest.py": Project(
        tests=ADDS + "\n\ndef test_kept(asked):\n    pass\n",
        files={"conftest.py": "import pytest\n" + "# a long text\n" * 5000
               + "\n\n@pytest.fixture\ndef asked():\n    pytest.skip('not here')\n"},
    ),
    "a conftest.py that leaves things": Project(files={"conftest.py": LEAVES}),
    "tests that leave things": Project(
        tests=f"def test_it():\n{indented(LEAVES)}    assert add(2, 3) == 5\n" + KEPT
    ),
    "tests that run once in a tree": Project(
        tests="def test_it():\n    os.mkdir('made')\n    assert add(2, 3) == 5\n" + KEPT
    ),
    "much data beside the tests": Project(files={"tests/data/much.bin": MUCH}, laid={}),
    "much data in a package that holds its tests": Project(
        files={"tiny/much.bin": MUCH}, tests="", command="{python} -m pytest -q tiny",
        laid={"tiny/tests/test_sums.py": HEAD + ADDS + KEPT},
        mend=("tiny/tests/test_sums.py::test_it",), keep=("tiny/tests/test_sums.py::test_kept",),
    ),
}  # fmt: skip


QUICK = {"-k leaves tests out", "a conftest.py that chooses", "other names of files"}
"""An option, a `conftest.py` and a name: `make test-all` grades all projects."""


@pytest.fixture(scope="module")
def verdicts(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[tuple[str, str], Verdict]:
    patches = Patches(tmp_path_factory.mktemp("patches") / "work")
    made = {"gold": patches.gold(), "idle": patches.of({"new.txt": "x\n"})}
    work = [(name, which) for name in selected(request, "name") for which in made]

    async def whole() -> list[Verdict]:
        two = asyncio.Semaphore(2)

        async def one(name: str, which: str) -> Verdict:
            async with two:
                given = PROJECTS[name].reference()
                return await grade(driver("local").open, given, made[which])

        return await asyncio.gather(*(one(*each) for each in work))

    return dict(zip(work, asyncio.run(whole()), strict=True))


@pytest.mark.parametrize("name", cases(PROJECTS, QUICK))
def test_project_with_its_own_settings_is_graded_by_its_tests(
    verdicts: dict[tuple[str, str], Verdict], name: str
) -> None:
    gold, idle = verdicts[name, "gold"], verdicts[name, "idle"]

    assert gold.resolved, str(gold)
    assert idle.code == "failed", str(idle)
