"""Grading failures that the patch did not cause, other runners than pytest, incomplete tasks."""

import asyncio
import math
import shutil
import sys
import venv
from dataclasses import replace
from pathlib import Path

import pytest

from rollcall.sandbox.boxes.box import Box, CommandResult, Spec, driver
from rollcall.sandbox.grading.grading import RUNS, grade, longest_s
from rollcall.sandbox.grading.reference import Reference, reference_of
from rollcall.sandbox.grading.verdict import Verdict
from rollcall.sandbox.tasks.harbor import read_task
from rollcall.schemas.errors import WorkFailed
from tests.support.tiny_package import BASE, TESTS, Patches, reference, tar_of, write_task

UNITTEST = {
    "tests/__init__.py": "",
    "tests/test_sums.py": (
        "import unittest\nfrom tiny.sums import add, same\n\n\nclass T(unittest.TestCase):\n"
        "    def test_adds(self):\n        self.assertEqual(add(2, 3), 5)\n\n"
        "    def test_same(self):\n        self.assertEqual(same(2), 2)\n"
    ),
}


@pytest.fixture(scope="module")
def patches(tmp_path_factory: pytest.TempPathFactory) -> Patches:
    return Patches(tmp_path_factory.mktemp("patches") / "work")


@pytest.fixture(scope="module")
def gold(patches: Patches) -> bytes:
    return patches.gold()


@pytest.fixture(scope="module")
def idle(patches: Patches) -> bytes:
    """A patch that applies, and fixes nothing."""
    return patches.of({"tiny/more.py": "x = 1\n"})


def judged(given: Reference, patch: bytes) -> Verdict:
    return asyncio.run(grade(driver("local").open, given, patch))


def by_unittest(**fields: object) -> Reference:
    given = reference(
        command=f"{sys.executable} -m unittest -v 2>&1 | cat; exit $(test -e no)",
        parser="unittest",
        fail_to_pass=("tests.test_sums.T.test_adds",),
        pass_to_pass=("tests.test_sums.T.test_same",),
    )
    verifier = given.verifier.model_copy(update=fields)
    return replace(given, verifier=verifier, tests=tar_of(UNITTEST))


def test_unittest_command_is_run_by_a_shell(gold: bytes, idle: bytes) -> None:
    given = by_unittest(command=f"{sys.executable} -m unittest -v")

    assert judged(given, gold) == Verdict("resolved", "all 2 tests pass", 1.0)
    verdict = judged(given, idle)
    assert (verdict.code, verdict.passed) == ("failed", 0.5)
    assert "tests.test_sums.T.test_adds FAILED" in verdict.reason


def test_exit_code_zero_with_failed_tests_is_invalid(idle: bytes) -> None:
    verdict = judged(by_unittest(command=f"{sys.executable} -m unittest -v || true"), idle)

    assert (verdict.code, verdict.reason) == ("invalid", "exit code 0, but 1 tests failed or erred")


def test_exit_code_alone_can_decide_the_verdict(gold: bytes, idle: bytes) -> None:
    command = f"{sys.executable} -c 'from tiny.sums import add; assert add(2, 3) == 5'"
    given = reference(command=command, parser="exit-code", fail_to_pass=(), pass_to_pass=())

    assert judged(given, gold).resolved
    assert judged(given, idle) == Verdict("failed", "exit code 1")


def test_pytest_run_by_a_shell_is_parsed_from_its_output(gold: bytes) -> None:
    given = reference(command=f"cd . && PYTHONPATH=. {sys.executable} -m pytest -q -rA tests")

    assert judged(given, gold).resolved


@pytest.mark.parametrize("path", ["", "lib:."])
def test_tests_see_the_environment_variables_of_their_box(
    tmp_path: Path, gold: bytes, idle: bytes, path: str
) -> None:
    (tmp_path / "tool").write_text("#!/bin/sh\necho of the box\n")
    (tmp_path / "tool").chmod(0o755)
    more = "import os, subprocess\n\ndef test_box():\n"
    more += "    assert subprocess.check_output(['tool']) == b'of the box\\n'\n"
    more += "    assert (os.environ['A'], os.environ['B']) == ('box', 'test')\n"
    more += "    import beside\n" if path else ""
    tests = {**TESTS, "tests/test_box.py": more}
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin", "A": "box", "B": "box", "PYTHONPATH": path or "."}
    given = reference(
        command=f"{sys.executable} -m pytest -q tests",
        pass_to_pass=("tests/test_box.py::test_box",),
        env={"B": "test", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
    )
    base = tar_of({**BASE, "lib/beside.py": ""})
    given = replace(given, tests=tar_of(tests), base=base, spec=Spec(env=env))

    assert judged(given, gold).resolved, judged(given, gold)
    assert judged(given, idle).code == "failed"


ODD_TESTS = """
@pytest.mark.parametrize("n", [1, 2])
def test_parts(subtests, n):
    with subtests.test("of n - [x]"):
        assert n == 1


@pytest.fixture
def ends():
    yield
    assert False


def test_torn(ends):
    pass


class PartsTest(unittest.TestCase):
    def test_bad(self):
        for n in (1, 2):
            with self.subTest(n=n):
                self.assertEqual(n, 1)

    def test_left_out(self):
        with self.subTest(n=1):
            self.skipTest("no")
"""


@pytest.mark.parametrize("before", ["", "cd . && "])
def test_failed_subtests_and_teardowns_are_failures_without_contradiction(
    gold: bytes, before: str
) -> None:
    """Failures of subtests and of a teardown, both supervised and parsed from the output."""
    given = reference(command=f"{before}PYTHONPATH=. {sys.executable} -m pytest -q -rA tests")
    tests = {name: text + ODD_TESTS for name, text in TESTS.items()}
    bad = tuple(f"tests/test_sums.py::{test}" for test in ("test_torn", "PartsTest::test_bad"))
    asked = given.verifier.model_copy(update={"pass_to_pass": bad})

    verdict = judged(replace(given, verifier=asked, tests=tar_of(tests)), gold)

    assert verdict.code == "failed"
    assert verdict.reason == (
        "2 of 2 pass-to-pass do not pass: tests/test_sums.py::test_torn ERROR, "
        "tests/test_sums.py::PartsTest::test_bad FAILED"
    )


def test_command_past_its_timeout_is_killed(gold: bytes) -> None:
    given = by_unittest(command="sleep 100", timeout_sec=0.2)

    assert judged(given, gold).code == "timeout"


def test_settings_of_the_test_suite_are_applied(gold: bytes) -> None:
    """The original ini file applies, with its added options."""
    given = reference(command=f"PYTHONPATH=. {sys.executable} -m pytest -rA tests")
    base = {**BASE, "setup.cfg": "[tool:pytest]\naddopts = -k not_yet\nxfail_strict = true\n"}
    tests = {"tests/test_sums.py": TESTS["tests/test_sums.py"].replace("same(1) == 2", "True")}

    verdict = judged(replace(given, base=tar_of(base), tests=tar_of(tests)), gold)

    assert "test_adds is missing" in verdict.reason
    assert "test_not_yet FAILED" in verdict.reason


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"command": "/nowhere/python3 -m pytest -q tests"}, "cannot be run in the box"),
        ({"command": "python3 -m pytest -q tests", "env": {"PATH": "/nowhere"}}, "cannot"),
    ],
)
def test_box_without_an_interpreter_gives_no_verdict(
    gold: bytes, fields: dict[str, object], says: str
) -> None:
    with pytest.raises(WorkFailed, match=says) as raised:
        judged(reference(**fields), gold)

    assert (raised.value.code, raised.value.retriable) == ("bad_image", False)


def test_interpreter_without_pytest_gives_no_verdict(gold: bytes, tmp_path: Path) -> None:
    venv.create(tmp_path, symlinks=True)
    bare = tmp_path / "bin" / "python3"

    with pytest.raises(WorkFailed, match="cannot run pytest") as raised:
        judged(reference(command=f"{bare} -m pytest -q tests"), gold)

    assert not raised.value.retriable


class Dying:
    """A box that dies, or runs out of memory, at its n-th command."""

    def __init__(self, box: Box, lives: int, *, spoilt: bool = False) -> None:
        self.box = box
        self.spoilt = spoilt
        self.lives = lives
        self.closed = False

    def __getattr__(self, name: str) -> object:
        return getattr(self.box, name)

    async def run(self, argv: list[str], **options: object) -> CommandResult:
        self.lives -= 1
        if self.lives < 0:
            return CommandResult("", 137, oom=self.spoilt)
        return await self.box.run(argv, **options)  # type: ignore[arg-type]

    async def close(self) -> None:
        self.closed = True
        await self.box.close()


@pytest.mark.parametrize("lives", [0, 1, 2, 3])
def test_dead_box_gives_no_verdict_and_is_closed(gold: bytes, lives: int) -> None:
    dying: list[Dying] = []

    async def open_box(spec: Spec) -> Box:
        dying.append(Dying(await driver("local").open(spec), lives))
        return dying[0]  # type: ignore[return-value]

    with pytest.raises(WorkFailed) as raised:
        asyncio.run(grade(open_box, reference(), gold))

    assert (raised.value.code, raised.value.retriable) == ("box_died", True)
    assert dying[0].closed


@pytest.mark.parametrize(("within_s", "opened"), [(math.inf, 4), (RUNS * longest_s(120.0), 2)])
def test_repeated_box_death_only_with_the_patch_is_blamed_on_the_patch(
    gold: bytes, within_s: float, opened: int
) -> None:
    boxes: list[Box] = []

    async def open_box(spec: Spec) -> Box:
        boxes.append(await driver("local").open(spec))
        with_patch = len(boxes) < opened
        return Dying(boxes[-1], 3 if with_patch else 100)  # type: ignore[return-value]

    verdict = asyncio.run(grade(open_box, reference(), gold, within_s=within_s))

    assert (verdict.code, len(boxes)) == ("broken", opened)
    assert f"({opened - 1} times)" in verdict.reason


@pytest.mark.parametrize("code", ["box_unavailable", "box_died", "bad_config"])
def test_box_that_cannot_be_opened_gives_no_verdict(gold: bytes, code: str) -> None:
    """Driver errors such as no engine, no image, no name resolution, no disk space."""

    async def open_box(spec: Spec) -> Box:
        raise WorkFailed(code, "it cannot be had", retriable=code != "bad_config")

    with pytest.raises(WorkFailed) as raised:
        asyncio.run(grade(open_box, reference(), gold))

    assert raised.value.code == code


@pytest.mark.parametrize("lives", [0, 1, 2, 3])
def test_box_without_memory_left_by_the_patch_gives_verdict_box_spoilt(
    gold: bytes, lives: int
) -> None:
    async def open_box(spec: Spec) -> Box:
        return Dying(await driver("local").open(spec), lives, spoilt=True)  # type: ignore[return-value]

    verdict = asyncio.run(grade(open_box, reference(), gold))

    assert (verdict.code, verdict.resolved) == ("box_spoilt", False)


def test_grading_directory_is_the_workdir_of_the_image_if_it_holds_code(
    tmp_path: Path,
) -> None:
    task = write_task(tmp_path / "sums")
    text = (task / "task.toml").read_text()
    (task / "task.toml").write_text(f'[environment]\ndocker_image = "base"\n{text}')

    given = reference_of(read_task(task))
    assert (given.workdir, given.spec.image, given.spec.writable) == ("", "base", ())
    assert given.base is not None

    (task / "task.toml").write_text(f'[environment]\nworkdir = "/code"\n{text}')
    (task / "environment" / "Dockerfile").write_text("FROM base\nCOPY testbed /code\n")
    given = reference_of(read_task(task))
    assert (given.workdir, given.spec.writable, given.base) == ("/code", ("/code",), None)
    shutil.rmtree(task / "environment")
    (task / "task.toml").write_text(f'[environment]\ndocker_image = "base"\n{text}')
    given = reference_of(read_task(task))
    assert (given.workdir, given.spec.writable) == ("/testbed", ("/testbed",))
    assert given.base is None


def test_task_directory_can_be_used_as_reference(gold: bytes, tmp_path: Path) -> None:
    task = write_task(tmp_path / "sums")

    given = reference_of(read_task(task))

    assert judged(given, gold).resolved


@pytest.mark.parametrize("how", ["by its witness", "by a shell"])
def test_skip_marks_in_unreplaced_test_files_count_and_patches_cannot_remove_them(
    patches: Patches, how: str
) -> None:
    before = "" if how == "by its witness" else "cd . && "
    other = "import pytest\n\n\n@pytest.mark.xfail\ndef test_later():\n    assert 1 == 2\n"
    base = {**BASE, "checks/test_other.py": other, "checks/test_third.py": other}
    given = reference(
        command=f"{before}PYTHONPATH=. {sys.executable} -m pytest -q -rA tests checks",
        pass_to_pass=("checks/test_other.py::test_later",),
    )
    given = replace(given, base=tar_of(base))
    gutted = patches.of({"checks/test_other.py": "def test_later():\n    pass\n"})

    assert judged(given, patches.gold()).resolved
    assert judged(given, gutted).code == "only_tests"
