"""Patches that want a reward without mending anything: each earns 0, with its own reason.

The package's bug stays in all of them. After each, nothing of the box is left.
"""

import asyncio
from dataclasses import dataclass
from pathlib import Path

import pytest

from sandbox.boxes.box import Box, Spec, driver
from sandbox.grading.grading import grade
from sandbox.grading.reference import Reference
from sandbox.grading.verdict import Verdict
from tests.support.processes_left import running
from tests.support.tiny_package import Patches, reference

SLEEP = "7654321.125"
"""What sleepers of this module sleep, so that they can be found."""


class Boxes:
    """Opens boxes of a driver, and knows what became of them."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.opened: list[Box] = []
        self.closed = 0

    async def open(self, spec: Spec) -> Box:
        box = await driver(self.name).open(spec)
        self.opened.append(box)
        close = box.close

        async def counted() -> None:
            self.closed += 1
            await close()

        box.close = counted  # type: ignore[method-assign]
        return box

    def nothing_left(self) -> None:
        assert self.closed == len(self.opened)
        assert not running(SLEEP)
        if self.name == "local":
            assert not any(Path(box.directory.decode()).exists() for box in self.opened)


def judged(
    patch: bytes, given: Reference | None = None, name: str = "local"
) -> tuple[Verdict, Boxes]:
    """Grade once; nothing may be left."""
    boxes = Boxes(name)
    verdict = asyncio.run(grade(boxes.open, given or reference(), patch))
    boxes.nothing_left()
    return verdict, boxes


@pytest.fixture(scope="module")
def patches(tmp_path_factory: pytest.TempPathFactory) -> Patches:
    return Patches(tmp_path_factory.mktemp("patches") / "work")


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
        "invalid", "control tests",
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
}  # fmt: skip


@pytest.mark.parametrize("name", [*RUNS, *LEFT_OUT])
def test_a_hostile_patch_earns_nothing(patches: Patches, name: str) -> None:
    attack = {**RUNS, **LEFT_OUT}[name]
    patch = patches.of(attack.files, without=attack.without)

    verdict, _ = judged(patch)

    assert (verdict.code, verdict.resolved) == (attack.code, False)
    assert attack.says in verdict.reason


def test_a_sleep_ends_with_its_time_and_leaves_nobody(patches: Patches) -> None:
    patch = patches.of(at_import(f"import os; os.execv('/bin/sleep', ['sleep', '{SLEEP}'])"))

    verdict, _ = judged(patch, reference(timeout_sec=1.0))

    assert (verdict.code, verdict.reason) == ("timeout", "the tests take more than 1 s")


GOLD_TO = b"--- a/tiny/sums.py\n+++ b/tiny/sums.py\n"


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
    ".git": (made_up(".git/hooks/post-applypatch"), "path", "invalid path '.git/"),
    ".git by another name": (made_up(".GIT/config"), "path", "invalid path"),
    "a submodule": (
        b"diff --git a/s b/s\nnew file mode 160000\n--- /dev/null\n+++ b/s\n@@ -0,0 +1 @@\n"
        b"+Subproject commit 1111111111111111111111111111111111111111\n",
        "submodule", "submodule",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BY_HAND)
def test_what_is_no_patch_or_leads_out_is_not_applied(name: str) -> None:
    patch, code, says = BY_HAND[name]

    verdict, boxes = judged(patch)

    assert (verdict.code, verdict.resolved) == (code, False)
    assert says in verdict.reason
    if code in ("empty", "too_large", "submodule"):
        assert not boxes.opened


def test_an_absolute_path_stays_below(tmp_path: Path) -> None:
    target = tmp_path / "evil"

    verdict, _ = judged(made_up(f"/{target}"))

    assert not verdict.resolved
    assert not target.exists()


@pytest.mark.parametrize("target", ["/etc/passwd", "../..", "a/../../b"])
def test_a_link_that_leads_out_is_refused(patches: Patches, target: str) -> None:
    (patches.directory / "tiny" / "link").symlink_to(target)

    verdict, boxes = judged(patches.made())

    assert (verdict.code, boxes.opened) == ("link", [])


def test_a_link_where_the_tests_belong_is_refused(patches: Patches) -> None:
    given = reference(replace=("suite/tests",))
    (patches.directory / "suite").symlink_to("tiny")

    verdict, _ = judged(patches.made(), given)

    assert (verdict.code, "where the tests" in verdict.reason) == ("link", True)


def test_a_patch_with_other_line_ends_is_not_applied(patches: Patches) -> None:
    verdict, _ = judged(patches.gold().replace(b"\n", b"\r\n"))

    assert (verdict.code, "not applied" in verdict.reason) == ("not_applied", True)


def test_binary_and_mode_changes_mend_nothing(patches: Patches) -> None:
    (patches.directory / "data.bin").write_bytes(bytes(range(256)) * 40)
    (patches.directory / "tiny" / "sums.py").chmod(0o755)

    verdict, _ = judged(patches.made())

    assert (verdict.code, "test_adds FAILED" in verdict.reason) == ("failed", True)


def test_gold_resolves_and_nothing_does_not_five_times_over(patches: Patches) -> None:
    gold, boxes = patches.gold(), Boxes("local")

    async def five() -> list[Verdict]:
        return [
            await grade(boxes.open, reference(), patch) for _ in range(5) for patch in (gold, b"")
        ]

    verdicts = asyncio.run(five())

    assert [verdict.resolved for verdict in verdicts] == [True, False] * 5
    assert verdicts[0] == Verdict("resolved", "all 5 tests pass", 1.0)
    boxes.nothing_left()
