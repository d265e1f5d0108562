"""Patches that want a reward without mending anything: each earns 0, with its own reason.

The package's bug stays in all of them, and nothing of their boxes is left. In directories of this
host, and in namespaces where bubblewrap is installed; elsewhere that half is left out, and says so.
"""

import asyncio
import secrets
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from sandbox.boxes.box import Box, BoxLimits, Spec, driver
from sandbox.boxes.bubblewrap import BubblewrapDriver
from sandbox.grading.grading import grade
from sandbox.grading.reference import Reference
from sandbox.grading.verdict import Verdict
from tests.support.bare_interpreter import SYSTEMS, bare_interpreter, usable
from tests.support.processes_left import running
from tests.support.tiny_package import TESTS, Patches, reference, tar_of

SLEEP = f"{100_000 + secrets.randbelow(800_000)}.{secrets.randbelow(10**9):09d}"
"""What sleepers of this module sleep, so that they are found; other runs have others."""


BOUND = BubblewrapDriver().enforces()["memory"] == "control group"


class Judge:
    """Grades in boxes of one kind, and knows what became of them."""

    def __init__(self, kind: str, interpreter: Path) -> None:
        self.kind = kind
        self.opened: list[Box] = []
        self.closed: list[Box] = []
        self.spec, python = Spec(), interpreter / "bin" / "python3"
        if kind == "bubblewrap":
            self.spec = Spec(mounts={"/opt/tests": str(interpreter)})
            python = Path("/opt/tests/bin/python3")
        self.command = f"PYTHONPATH=. {python} -m pytest -q -rA tests"

    def reference(self, limits: BoxLimits = BoxLimits(), **fields: object) -> Reference:  # noqa: B008
        given = reference(**{"command": self.command, **fields})
        return replace(given, spec=replace(self.spec, limits=limits), output_bytes=1 << 20)

    async def open(self, spec: Spec) -> Box:
        box = await driver(self.kind).open(spec)
        self.opened.append(box)
        close = box.close

        async def noted() -> None:
            await close()
            self.closed.append(box)

        box.close = noted  # type: ignore[method-assign]
        return box

    async def grade(self, patch: bytes, **fields: object) -> Verdict:
        return await grade(self.open, self.reference(**fields), patch)

    def once(self, patch: bytes, **fields: object) -> Verdict:
        """Grade; nothing may be left."""
        return self.all({"": patch}, **fields)[""]

    def all(self, patches: Mapping[str, bytes], **fields: object) -> dict[str, Verdict]:
        """Grade several, two at once; nothing may be left."""

        async def whole() -> dict[str, Verdict]:
            two = asyncio.Semaphore(2)

            async def one(patch: bytes) -> Verdict:
                async with two:
                    return await self.grade(patch, **fields)

            verdicts = await asyncio.gather(*map(one, patches.values()))
            found = set(await driver(self.kind).found())
            assert not found & {box.ident for box in self.opened}
            return dict(zip(patches, verdicts, strict=True))

        verdicts = asyncio.run(whole())
        assert self.opened == self.closed or set(self.opened) == set(self.closed)
        assert not running(SLEEP)
        return verdicts


@pytest.fixture(scope="module", params=["local", "bubblewrap"])
def judge(request: pytest.FixtureRequest) -> Iterator[Judge]:
    if request.param == "bubblewrap" and not (shutil.which("bwrap") and usable(SYSTEMS)):
        pytest.skip("left out: gradings in namespaces, for want of bubblewrap (`bwrap`)")
    with tempfile.TemporaryDirectory(prefix="tests-") as place:
        Path(place).chmod(0o755)  # a box's user has to walk there
        yield Judge(request.param, bare_interpreter(Path(place)))


@pytest.fixture(scope="module")
def patches(tmp_path_factory: pytest.TempPathFactory) -> Patches:
    return Patches(tmp_path_factory.mktemp("patches") / "work")


@pytest.fixture(scope="module")
def verdicts(judge: Judge, patches: Patches) -> dict[str, Verdict]:
    """Of all hostile patches."""
    made = {
        name: patches.of(attack.files, without=attack.without)
        for name, attack in {**RUNS, **LEFT_OUT}.items()
    }
    return judge.all(made)


@dataclass(frozen=True)
class Attack:
    """What a patch writes, and what it is told."""

    code: str
    says: str
    files: dict[str, str]
    without: tuple[str, ...] = ()


def at_import(text: str) -> dict[str, str]:
    """Run when the package is imported: by the tests, within pytest's own process."""
    return {"tiny/__init__.py": f"{text}\nfrom tiny.sums import add\n"}


PASSES = "def test_adds():\n    pass\n"
FAKED = """import pytest

@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    report.outcome = "passed"
    return report
"""
PASS_ALL = """import _pytest.runner as runner

def faked(when, **rest):
    return runner.CallInfo(None, None, 0, 1, 1, when, _ispytest=True)

"""
RUNS: dict[str, Attack] = {
    "sys.exit(0) at import": Attack(
        "invalid", "process with exit code", at_import("import sys; sys.exit(0)")
    ),
    "os._exit(0) at import": Attack(
        "invalid", "did not come to its end: its process ended with exit code 0",
        at_import("import os; os._exit(0)"),
    ),
    "kills itself": Attack(
        "invalid", "ended with signal 9", at_import("import os; os.kill(os.getpid(), 9)")
    ),
    "kills whoever runs it": Attack(
        "killed", "ended with", at_import("import os\nos.kill(os.getppid(), 9)\nos.pause()")
    ),
    "a hook that fakes reports, registered at import": Attack(
        "invalid", "pytest_runtest_makereport, which tiny.faked has",
        {
            **at_import("from tiny import faked"),
            "tiny/faked.py": FAKED + "import gc\nfrom _pytest.config import PytestPluginManager\n"
            "for each in gc.get_objects():\n    if isinstance(each, PytestPluginManager):\n"
            "        import sys; each.register(sys.modules[__name__])\n",
        },
    ),
    "pytest's own runner is replaced": Attack(
        "invalid", "was changed while it ran: _pytest.runner",
        at_import(
            "import _pytest.runner as r\nf = r.CallInfo.from_call.__func__\n"
            "def g(cls, func, when, reraise=None):\n"
            "    x = f(cls, func, when, reraise)\n    x.excinfo = None\n    return x\n"
            "r.CallInfo.from_call = classmethod(g)\n"
        ),
    ),
    "modules named as pytest's": Attack(
        "failed", "test_adds FAILED",
        {name: "import os; os._exit(0)\n" for name in ("pytest.py", "_pytest/__init__.py",
         "pluggy.py", "iniconfig.py", "unittest.py", "json.py", "sitecustomize.pth")},
    ),
    "the witness's own words are replaced": Attack(
        "invalid", "was changed while it ran: __main__",
        at_import(
            "import __main__ as m\nold = m.Witness.tell\n"
            "def tell(self, *words):\n"
            "    old(self, *['passed' if w == 'failed' else w for w in words])\n"
            "m.Witness.tell = tell\n"
        ),
    ),
    "a plugin by an entry point": Attack(
        "failed", "test_adds FAILED",
        {
            "faked.py": FAKED,
            "faked-1.dist-info/METADATA": "Metadata-Version: 2.1\nName: faked\nVersion: 1\n",
            "faked-1.dist-info/entry_points.txt": "[pytest11]\nfaked = faked\n",
            "also.egg-info/entry_points.txt": "[pytest11]\nfaked = faked\n",
            "also.egg-info/PKG-INFO": "Metadata-Version: 2.1\nName: also\nVersion: 1\n",
        },
    ),
    "written reports and printed markers": Attack(
        "failed", "test_adds FAILED",
        at_import(
            "import os, sys\n"
            "for fd in (1, 2):\n"
            "    os.write(fd, b'>>>>> Start Test Output\\n'\n"
            "        b'PASSED tests/test_sums.py::test_adds\\n'\n"
            "        b'=== 9 passed in 0.1s ===\\n>>>>> End Test Output\\n')\n"
            "open('report.xml', 'w').write('<testsuite tests=\"1\"/>')\n"
            "open('reward.txt', 'w').write('1')\n"
        ),
    ),
    "lines written to every descriptor": Attack(
        "invalid", "forged",
        at_import(
            "import os\nfor fd in range(3, 64):\n    try:\n"
            "        os.write(fd, b'[\"?\", \"end\", 0, 0, []]\\n')\n    except OSError: pass\n"
        ),
    ),
    "atexit": Attack(
        "failed", "test_adds FAILED", at_import("import atexit, os; atexit.register(os._exit, 0)")
    ),
    "a fork that outlives": Attack(
        "failed", "test_adds FAILED",
        at_import(
            "import os\nif os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n"
            f"        os.execv('/bin/sleep', ['sleep', '{SLEEP}'])\n    os._exit(0)\n"
        ),
    ),
    "a fork that goes on as pytest": Attack(
        "invalid", "did not come to its end",
        at_import("import os\nif os.fork():\n    os._exit(0)\n"),
    ),
    "an output flood": Attack(
        "flood", "print more", at_import("import os\nwhile True: os.write(1, b'x' * 65536)")
    ),
    "tests rewritten at import": Attack(
        "invalid", "tests/test_sums.py was changed",
        at_import(
            "import pathlib, sys\np = pathlib.Path(__file__).parents[1] / 'tests/test_sums.py'\n"
            "p.write_text(p.read_text())\np.write_text(p.read_text() + '# mine')\n"
            "import tiny.sums\ntiny.sums.add = lambda a, b: a + b\n"
        ),
    ),
}  # fmt: skip


def sums(add: str, before: str = "") -> dict[str, str]:
    """The module with another body of the function that is to be mended."""
    return {"tiny/sums.py": f"{before}def add(a, b):\n{add}\n\n\ndef same(a):\n    return a\n"}


def at_collection(text: str) -> dict[str, str]:
    """Run for `test_adds` when it is collected, by a plugin that the package registers."""
    return at_import(
        "import gc\nfrom _pytest.config import PytestPluginManager\nclass Plugin:\n"
        "    def pytest_collection_modifyitems(self, items):\n"
        "        for item in items:\n"
        f"            if item.name == 'test_adds':\n                {text}\n"
        "for each in gc.get_objects():\n    if isinstance(each, PytestPluginManager):\n"
        "        each.register(Plugin())\n"
    )


TEST_MODULES = "[m for n, m in list(sys.modules.items()) if n.endswith('test_sums')]"
RIGHT = "lambda a, b: a + b"
RUNS |= {
    "pytest.xfail is called by the code under test": Attack(
        "failed", "test_adds FAILED", sums("    import pytest; pytest.xfail('later')")
    ),
    "pytest.skip is called by the code under test": Attack(
        "failed", "test_adds FAILED", sums("    import pytest; pytest.skip('later')")
    ),
    "what pytest.xfail raises is raised": Attack(
        "failed", "test_adds FAILED",
        sums("    from _pytest.outcomes import XFailed; raise XFailed('later')"),
    ),
    "unittest's SkipTest is raised": Attack(
        "failed", "test_adds FAILED",
        sums("    import unittest; raise unittest.SkipTest('later')"),
    ),
    "a mark is put on the test": Attack(
        "failed", "test_adds FAILED",
        at_collection("import pytest; item.add_marker(pytest.mark.xfail)"),
    ),
    "everything is skipped": Attack(
        "failed", "test_adds FAILED",
        {"tiny/sums.py": "import pytest\ndef add(a, b): pytest.xfail('')\n"
         "def same(a): pytest.skip('')\n"},
    ),
    "a module of tests stands in for the real one": Attack(
        "invalid", "test_adds is not the function that its file makes",
        at_import(
            f"import sys, types\nfor real in {TEST_MODULES}:\n"
            "    fake = types.ModuleType(real.__name__)\n"
            "    fake.__file__, fake.__spec__ = real.__file__, real.__spec__\n"
            "    sys.modules[real.__name__] = fake\n"
            "    from _pytest.assertion.rewrite import rewrite_asserts\n"
            "    import ast, tiny.sums as s\n"
            "    text = open(real.__file__).read().replace('import add, same', 'import same')\n"
            f"    fake.add = {RIGHT}\n"
            "    exec(compile(text, real.__file__, 'exec'), fake.__dict__)\n"
        ),
    ),
    "the test's function is another one": Attack(
        "invalid", "test_adds is not the function that its file makes",
        at_collection("item.obj = lambda: None"),
    ),
    "what the test imported is exchanged": Attack(
        "invalid", "had add exchanged", at_collection(f"item.module.add = {RIGHT}")
    ),
    "a trace function gives the test another function": Attack(
        "invalid", "test_adds is traced",
        at_import(
            "import sys\ndef trace(frame, event, arg):\n"
            "    if frame.f_code.co_name == 'test_adds':\n"
            f"        frame.f_globals['add'] = {RIGHT}\n"
            "sys.settrace(trace)\n"
        ),
    ),
    "pytest.raises accepts anything": Attack(
        "invalid", "pytest.raises",
        at_import(
            "import contextlib, pytest\nclass Any(contextlib.suppress):\n"
            "    def __init__(self, *a, **k): super().__init__(BaseException)\n"
            "pytest.raises = Any\n"
        ),
    ),
    "what pytest.raises gives accepts anything": Attack(
        "invalid", ".__exit__",
        at_import(
            "import pytest\ntype(pytest.raises(ValueError)).__exit__ = lambda self, *a: True\n"
        ),
    ),
    "assertions of unittest accept anything": Attack(
        "invalid", "assertEqual",
        at_import("import unittest\nunittest.TestCase.assertEqual = lambda *a, **k: None\n"),
    ),
    "a method gets another code": Attack(
        "invalid", "_pytest.python.Function.runtest",
        at_import(
            "import _pytest.python as p\ndef nothing(self): pass\n"
            "p.Function.runtest.__code__ = nothing.__code__\n"
        ),
    ),
    "the test file's assertions raise what is skipped": Attack(
        "invalid", "of its own",
        at_import(
            f"import builtins, pytest, sys\nfor m in {TEST_MODULES}:\n"
            "    fake = dict(vars(builtins), AssertionError=pytest.skip.Exception)\n"
            "    m.__dict__['__builtins__'] = fake\n"
        ),
    ),
    "an item runs nothing": Attack(
        "invalid", "has a runtest of its own", at_collection("item.runtest = lambda: None")
    ),
    "the witness is told that pytest is missing": Attack(
        "broken", "without the patch the tests run, with it the box's interpreter cannot run",
        at_import(
            "import gc, os\nfor each in gc.get_objects():\n"
            "    if type(each).__name__ == 'Witness':\n"
            "        each.tell('missing', 'no pytest here'); os._exit(1)\n"
        ),
    ),
    "a compiled module in place of a source": Attack(
        "failed", "test_adds FAILED",
        {"tiny/__pycache__/sums.cpython-311.pyc": "not what it seems", "x.txt": "1\n"},
    ),
}  # fmt: skip
LEFT_OUT: dict[str, Attack] = {
    "edited tests": Attack("only_tests", "nothing but tests", {"tests/test_sums.py": PASSES}),
    "deleted tests": Attack("only_tests", "nothing but tests", {}, ("tests/test_sums.py",)),
    "conftest.py that fakes reports": Attack(
        "only_tests", "nothing but tests", {"conftest.py": FAKED, "tests/conftest.py": FAKED}
    ),
    "ini files that add plugins": Attack(
        "only_tests", "nothing but tests",
        {
            "pytest.ini": "[pytest]\naddopts = -p tiny.sums --co\n",
            "setup.cfg": "[tool:pytest]\naddopts = --co\n",
            "tox.ini": "[pytest]\npython_files = nothing\n",
        },
    ),
    "sitecustomize": Attack(
        "only_tests", "nothing but tests", {"sitecustomize.py": "import os; os._exit(0)\n"}
    ),
    "modules in the place of the runners": Attack(
        "only_tests", "nothing but tests",
        {"pytest.py": "", "unittest.py": "", "_pytest/__init__.py": "", "pluggy/__init__.py": ""},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", [*RUNS, *LEFT_OUT])
def test_a_hostile_patch_earns_nothing(verdicts: dict[str, Verdict], name: str) -> None:
    verdict, attack = verdicts[name], {**RUNS, **LEFT_OUT}[name]

    assert (verdict.code, verdict.resolved) == (attack.code, False)
    assert attack.says in verdict.reason


def test_a_sleep_ends_with_its_time_and_leaves_nobody(judge: Judge, patches: Patches) -> None:
    patch = patches.of(at_import(f"import os; os.execv('/bin/sleep', ['sleep', '{SLEEP}'])"))

    verdict = judge.once(patch, timeout_sec=1.0)

    assert (verdict.code, verdict.reason) == ("timeout", "the tests take more than 1 s")


FILL = """\
import os
for place in ("/dev/shm", "/tmp", "."):
    try:
        with open(f"{place}/all", "wb", 0) as file:
            while file.write(bytes(1 << 16)):
                pass
    except OSError:
        pass
"""
BARRED = "import os; os.chmod('.', 0)"
BARRED = "import os; os.chmod('.', 0)"
SPOILERS = {
    "no memory is left": FILL,
    "its directory is barred": BARRED,
    "and whoever runs it is killed": f"{BARRED}; os.kill(os.getppid(), 9); os._exit(0)",
}
SMALL = BoxLimits(memory_bytes=192 << 20, disk_bytes=128 << 20)


@pytest.mark.parametrize("name", SPOILERS)
def test_whose_code_breaks_the_box_that_judges_it_earns_nothing(
    judge: Judge, patches: Patches, name: str
) -> None:
    if "memory" in name and (judge.kind == "local" or not BOUND):
        pytest.skip(f"left out for want of control groups: box {judge.kind!r} without memory")
    patch = patches.of(at_import(SPOILERS[name]))

    verdict = judge.once(patch, limits=SMALL if judge.kind == "bubblewrap" else BoxLimits())

    assert verdict.code in ("failed", "invalid", "killed", "out_of_memory", "box_spoilt")
    assert not verdict.resolved


def made_up(path: str) -> bytes:
    """A new file at a path, by hand: git makes no such patch."""
    head = f"diff --git a/{path} b/{path}\nnew file mode 100644\n--- /dev/null\n+++ b/{path}\n"
    return f"{head}@@ -0,0 +1 @@\n+x\n".encode()


BY_HAND: dict[str, tuple[bytes, str, str]] = {
    "nothing": (b"", "empty", "is empty"),
    "blank lines": (b"\n \n", "empty", "is empty"),
    "garbage": (b"\x00\xff garbage \x80" * 50, "not_applied", "it is no patch"),
    "words": (b"I have mended the bug.\n", "not_applied", "it is no patch"),
    "half a patch": (b"diff --git a/x b/x\n", "not_applied", "not applied"),
    "50 MB": (b"diff --git a/x b/x\n" + b"+x\n" * (50 << 20 >> 2), "too_large", "can be"),
    "a path above": (made_up("../../etc/evil"), "path", "invalid path"),
    "a path deep below that climbs": (made_up("tiny/../../evil"), "path", "invalid path"),
    "an ini file renamed away": (
        b"diff --git a/setup.cfg b/x.cfg\nsimilarity index 100%\nrename from setup.cfg\n"
        b"rename to x.cfg\n",
        "guarded", "renames setup.cfg",
    ),
    ".git": (made_up(".git/hooks/post-applypatch"), "path", "invalid path '.git/"),
    ".git by another name": (made_up(".GIT/config"), "path", "invalid path"),
    "a submodule": (
        b"diff --git a/s b/s\nnew file mode 160000\n--- /dev/null\n+++ b/s\n@@ -0,0 +1 @@\n"
        b"+Subproject commit 1111111111111111111111111111111111111111\n",
        "submodule", "submodule",
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def by_hand(judge: Judge) -> dict[str, Verdict]:
    return judge.all({name: patch for name, (patch, _, _) in BY_HAND.items()})


@pytest.mark.parametrize("name", BY_HAND)
def test_what_is_no_patch_or_leads_out_is_not_applied(
    by_hand: dict[str, Verdict], name: str
) -> None:
    _, code, says = BY_HAND[name]
    verdict = by_hand[name]

    assert (verdict.code, verdict.resolved) == (code, False)
    assert says in verdict.reason


def test_an_absolute_path_stays_below(judge: Judge, tmp_path: Path) -> None:
    target = tmp_path / "evil"

    verdict = judge.once(made_up(f"/{target}"))

    assert not verdict.resolved
    assert not target.exists()


@pytest.mark.parametrize("target", ["/etc/passwd", "../..", "a/../../b"])
def test_a_link_that_leads_out_is_refused(judge: Judge, patches: Patches, target: str) -> None:
    before = len(judge.opened)
    (patches.directory / "tiny" / "link").symlink_to(target)

    verdict = judge.once(patches.made())

    assert (verdict.code, len(judge.opened)) == ("link", before)


def test_a_link_where_the_tests_belong_is_refused(judge: Judge, patches: Patches) -> None:
    (patches.directory / "suite").symlink_to("tiny")

    verdict = judge.once(patches.made(), replace=("suite/tests",))

    assert (verdict.code, "where the tests" in verdict.reason) == ("link", True)


def test_a_file_where_the_tests_belong_gives_a_verdict_all_the_same(judge: Judge) -> None:
    given = judge.reference(replace=("deep/tests",))
    tests = {f"deep/{name}": text for name, text in TESTS.items()}

    async def whole() -> Verdict:
        return await grade(judge.open, replace(given, tests=tar_of(tests)), made_up("deep"))

    verdict = asyncio.run(whole())

    assert not verdict.resolved
    assert verdict.code in ("invalid", "failed")


def test_other_line_ends_binary_and_mode_changes_mend_nothing(
    judge: Judge, patches: Patches
) -> None:
    (patches.directory / "data.bin").write_bytes(bytes(range(256)) * 40)
    (patches.directory / "tiny" / "sums.py").chmod(0o755)
    binary, ends = patches.made(), patches.gold().replace(b"\n", b"\r\n")

    verdicts = judge.all({"binary": binary, "ends": ends})

    assert verdicts["binary"].code == "failed"
    assert "test_adds FAILED" in verdicts["binary"].reason
    assert verdicts["ends"].code == "not_applied"


def test_gold_resolves_and_nothing_does_not_five_times_over(judge: Judge, patches: Patches) -> None:
    gold = patches.gold()

    verdicts = judge.all(
        {f"{n} {name}": p for n in range(5) for name, p in (("g", gold), ("", b""))}
    )

    assert [verdict.resolved for verdict in verdicts.values()] == [True, False] * 5
    assert verdicts["0 g"] == Verdict("resolved", "all 5 tests pass", 1.0)
