"""Patches that try to earn a reward without a fix: each earns 0, with its own reason.

The package's bug stays in all of them, and nothing of their boxes is left. They run in directories
of this host, and in namespaces; the latter are skipped with a message without bubblewrap.
"""

import asyncio
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from rollcall.sandbox.boxes.box import Box, BoxLimits, Spec, driver
from rollcall.sandbox.boxes.bubblewrap import BubblewrapDriver
from rollcall.sandbox.grading.grading import grade
from rollcall.sandbox.grading.reference import Reference
from rollcall.sandbox.grading.verdict import Verdict
from tests.support.bare_interpreter import SYSTEMS, bare_interpreter, usable
from tests.support.hostile_hooks import (
    BUILTIN,
    CLASS,
    CONSTANT,
    FIXTURE,
    HELPER,
    HOOKS,
    LATER,
    PARAMETERS,
)
from tests.support.hostile_patches import LEFT_OUT, RUNS, SLEEP, at_import
from tests.support.processes_left import running
from tests.support.tiers import cases, selected
from tests.support.tiny_package import TESTS, Patches, reference, tar_of

ATTACKS = {**RUNS, **LEFT_OUT, **HOOKS}
QUICK = {
    "os._exit(0) at import", "kills whoever runs it", "lines written to every descriptor",
    "an output flood", "what the test imported is exchanged", "edited tests",
    "pytest.skip is called by the code under test",
}  # fmt: skip
"""One attack of each kind: `make test-all` makes the others, and all of them in namespaces."""
BOUND = BubblewrapDriver().enforces()["memory"] == "control group"


class Judge:
    """Grades in boxes of one kind, and checks that each is closed."""

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

    def wanting(self, test: str) -> Reference:
        """The reference of an attack that wants a test of `LATER`, else the tiny package's."""
        if not test:
            return self.reference()
        kept = ("tests/test_first.py::test_same", "tests/test_later.py::test_same")
        given = self.reference(fail_to_pass=(test,), pass_to_pass=kept)
        return replace(given, tests=tar_of(LATER))

    def once(self, patch: bytes, **fields: object) -> Verdict:
        """Grade; nothing may be left."""
        return self.all({"": patch}, **fields)[""]

    def all(self, patches: Mapping[str, bytes], **fields: object) -> dict[str, Verdict]:
        """Grade several; nothing may be left."""
        given = self.reference(**fields)
        return self.each({name: (given, patch) for name, patch in patches.items()})

    def each(self, work: Mapping[str, tuple[Reference, bytes]]) -> dict[str, Verdict]:
        """Grade several, each by its reference, two at once; nothing may be left."""

        async def whole() -> dict[str, Verdict]:
            two = asyncio.Semaphore(2)

            async def one(given: Reference, patch: bytes) -> Verdict:
                async with two:
                    return await grade(self.open, given, patch)

            verdicts = await asyncio.gather(*(one(*each) for each in work.values()))
            found = set(await driver(self.kind).found())
            assert not found & {box.ident for box in self.opened}
            return dict(zip(work, verdicts, strict=True))

        verdicts = asyncio.run(whole())
        assert self.opened == self.closed or set(self.opened) == set(self.closed)
        assert not running(SLEEP)
        return verdicts


@pytest.fixture(scope="module", params=cases(["local", "bubblewrap"]))
def judge(request: pytest.FixtureRequest) -> Iterator[Judge]:
    if request.param == "bubblewrap" and not (shutil.which("bwrap") and usable(SYSTEMS)):
        pytest.skip("left out: gradings in namespaces, for want of bubblewrap (`bwrap`)")
    with tempfile.TemporaryDirectory(prefix="tests-") as place:
        Path(place).chmod(0o755)  # the user of a box must be able to reach it
        yield Judge(request.param, bare_interpreter(Path(place)))


@pytest.fixture(scope="module")
def patches(tmp_path_factory: pytest.TempPathFactory) -> Patches:
    return Patches(tmp_path_factory.mktemp("patches") / "work")


@pytest.fixture(scope="module")
def verdicts(request: pytest.FixtureRequest, judge: Judge, patches: Patches) -> dict[str, Verdict]:
    """The verdicts on all selected hostile patches."""
    names = selected(request, "name")
    made = {
        name: (judge.wanting(attack.mend), patches.of(attack.files, without=attack.without))
        for name, attack in ATTACKS.items()
        if name in names
    }
    return judge.each(made)


@pytest.mark.timeout(600)  # the first case judges all patches
@pytest.mark.parametrize("name", cases(ATTACKS, QUICK))
def test_hostile_patch_earns_zero(verdicts: dict[str, Verdict], name: str) -> None:
    verdict, attack = verdicts[name], ATTACKS[name]

    assert (verdict.code, verdict.resolved) == (attack.code, False)
    assert attack.says in verdict.reason


def test_there_are_at_least_sixty_hostile_patches() -> None:
    assert len(ATTACKS) >= 60


@pytest.mark.parametrize("test", cases([HELPER, CONSTANT, BUILTIN, PARAMETERS, FIXTURE, CLASS]))
def test_right_patch_resolves_tests_that_hostile_patches_attack(
    judge: Judge, patches: Patches, test: str
) -> None:
    if judge.kind == "local":
        assert judge.each({"": (judge.wanting(test), patches.gold())})[""].resolved


def test_sleeping_patch_times_out_and_leaves_no_process(judge: Judge, patches: Patches) -> None:
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
FIRST_TO_GO = (
    "for who in ('1', 'self'):\n    try: open(f'/proc/{who}/oom_score_adj', 'w').write('1000')\n"
    "    except OSError: pass\n"
)
FORKS = """\
import os, signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
while True:
    try:
        if os.fork() == 0:
            os.setsid()
    except OSError:
        signal.pause()
"""
SPOILERS = {
    "no memory is left": FILL,
    "no memory is left, and what holds the box is to be killed first": FIRST_TO_GO + FILL,
    "no memory is left to what forks until it may not": FORKS,
    "its directory is barred": BARRED,
    "and whoever runs it is killed": f"{BARRED}; os.kill(os.getppid(), 9); os._exit(0)",
}
SMALL = BoxLimits(memory_bytes=192 << 20, disk_bytes=128 << 20, processes=64)


@pytest.mark.parametrize("name", cases(SPOILERS, {"its directory is barred"}))
def test_patch_that_breaks_the_grading_box_earns_zero(
    judge: Judge, patches: Patches, name: str
) -> None:
    if "memory" in name and (judge.kind == "local" or not BOUND):
        pytest.skip(f"left out for want of control groups: box {judge.kind!r} without memory")
    patch = patches.of(at_import(SPOILERS[name]))

    small = SMALL if judge.kind == "bubblewrap" else BoxLimits()
    verdict = judge.once(patch, limits=small, timeout_sec=20.0)

    codes = "failed", "invalid", "killed", "out_of_memory", "box_spoilt", "broken", "timeout"
    assert verdict.code in codes
    assert not verdict.resolved


def made_up(path: str) -> bytes:
    """A handwritten patch that adds a file at a path for which git makes no patch."""
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
def test_malformed_or_escaping_patch_is_not_applied(by_hand: dict[str, Verdict], name: str) -> None:
    _, code, says = BY_HAND[name]
    verdict = by_hand[name]

    assert (verdict.code, verdict.resolved) == (code, False)
    assert says in verdict.reason


def test_absolute_path_in_a_patch_writes_nothing_outside_the_tree(
    judge: Judge, tmp_path: Path
) -> None:
    target = tmp_path / "evil"

    verdict = judge.once(made_up(f"/{target}"))

    assert not verdict.resolved
    assert not target.exists()


@pytest.mark.parametrize("target", ["/etc/passwd", "../..", "a/../../b"])
def test_link_out_of_the_tree_is_refused(judge: Judge, patches: Patches, target: str) -> None:
    before = len(judge.opened)
    (patches.directory / "tiny" / "link").symlink_to(target)

    verdict = judge.once(patches.made())

    assert (verdict.code, len(judge.opened)) == ("link", before)


def test_link_in_place_of_the_tests_is_refused(judge: Judge, patches: Patches) -> None:
    (patches.directory / "suite").symlink_to("tiny")

    verdict = judge.once(patches.made(), replace=("suite/tests",))

    assert (verdict.code, "where the tests" in verdict.reason) == ("link", True)


def test_file_in_place_of_the_tests_gives_verdict_failed(judge: Judge) -> None:
    given = judge.reference(replace=("deep/tests",))
    tests = {f"deep/{name}": text for name, text in TESTS.items()}

    async def whole() -> Verdict:
        return await grade(judge.open, replace(given, tests=tar_of(tests)), made_up("deep"))

    verdict = asyncio.run(whole())

    assert not verdict.resolved
    assert verdict.code == "failed"


def test_line_ending_binary_and_mode_changes_do_not_resolve(judge: Judge, patches: Patches) -> None:
    (patches.directory / "data.bin").write_bytes(bytes(range(256)) * 40)
    (patches.directory / "tiny" / "sums.py").chmod(0o755)
    binary, ends = patches.made(), patches.gold().replace(b"\n", b"\r\n")

    verdicts = judge.all({"binary": binary, "ends": ends})

    assert verdicts["binary"].code == "failed"
    assert "test_adds FAILED" in verdicts["binary"].reason
    assert verdicts["ends"].code == "not_applied"


@pytest.mark.parametrize("times", cases([1, 5]))
def test_gold_patch_resolves_and_empty_patch_fails_each_time(
    judge: Judge, patches: Patches, times: int
) -> None:
    gold = patches.gold()

    verdicts = judge.all(
        {f"{n} {name}": p for n in range(times) for name, p in (("g", gold), ("", b""))}
    )

    assert [verdict.resolved for verdict in verdicts.values()] == [True, False] * times
    assert verdicts["0 g"] == Verdict("resolved", "all 5 tests pass", 1.0)
