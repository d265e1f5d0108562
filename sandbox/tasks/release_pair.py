"""A real task from two releases of a package: the older code, and the newer one's tests.

What newer code passes and older code does not is to be mended; what both pass is to go on passing.
Nobody has to understand the fix: the statement is made of the names of tests. All that comes from
the package index stays in the task; none of it is ours to ship.
"""

import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from packaging.version import InvalidVersion, Version

from sandbox.tasks.git_trees import git, patch_between
from sandbox.tasks.harbor import (
    GOLD,
    INSTRUCTION,
    TASK_FILE,
    TEST_FILES,
    TESTBED,
    HarborTask,
    read_task,
)
from sandbox.tasks.sdists import NAME, VERSION, Sdist, fetch, unpack
from sandbox.tasks.statement import statement
from sandbox.tasks.suite_runs import RELEASE_TESTS, SuiteBox, passing, passing_twice
from schemas.errors import Refused
from schemas.private_folders import make_private
from schemas.whole_files import appearing, refuse_used

TEST_FOLDERS = ("tests", "test")
# Not part of the gold patch: inventories and pictures are most of what a release changes.
DOCUMENTATION = ("docs", "doc")
COMPILED = shutil.ignore_patterns("__pycache__", "*.pyc", "*.pyo", ".git")
SOLVE = """\
#!/bin/sh
set -e
here=$(cd "$(dirname "$0")" && pwd)
cd /testbed
git apply "$here/gold.patch"
"""

Say = Callable[[str], None]
Fetch = Callable[[str, str, Path], Sdist]


@dataclass(frozen=True, slots=True)
class ReleasePair:
    """Two releases; what is known of them beforehand is held against what is found."""

    name: str
    old: str
    new: str
    sha256: tuple[str, str] = ("", "")
    """Of both source releases; empty: whatever the index has."""
    counts: tuple[int, int] = (-1, -1)
    """How many tests are to be mended, and how many to go on passing; -1: as many as there are."""

    @property
    def title(self) -> str:
        return f"{self.name}-{self.old}-{self.new}"


@dataclass(frozen=True, slots=True)
class Releases:
    """Both, unpacked, and where the newer one has its tests."""

    pair: ReleasePair
    old: Path
    new: Path
    sdists: tuple[Sdist, Sdist]
    tests: str


async def build_pair(
    pair: ReleasePair, into: Path, box: SuiteBox, say: Say, *, get: Fetch = fetch
) -> HarborTask:
    """Build the task of two releases in a folder of tasks, whole or not at all.

    Raises Refused where it is none, Unavailable where the index is away, WorkFailed of the box.
    """
    check_pair(pair)
    refuse_used(into / pair.title, "task")
    with tempfile.TemporaryDirectory(prefix="rollcall-pair-") as scratch:
        releases = fetched(pair, Path(scratch), say, get)
        directory = Path(scratch) / "task" / pair.title
        write_code(releases, directory, Path(scratch) / "patch")
        mend, keep = await discovered(releases, directory, box, say)
        write_words(releases, directory, mend, keep, box.image)
        read_task(directory)
        make_private(into)
        with appearing(into / pair.title) as hidden:
            shutil.copytree(directory, hidden, symlinks=True)
    return read_task(into / pair.title)


def check_pair(pair: ReleasePair) -> None:
    """Raises Refused for names and versions that are none, and for a pair in the wrong order."""
    if not NAME.fullmatch(pair.name):
        msg = f"{pair.name!r} is no name of a package"
        raise Refused(msg)
    try:
        old, new = Version(pair.old), Version(pair.new)
    except InvalidVersion as error:
        msg = f"{error} (of package {pair.name!r}); write versions as the index has them"
        raise Refused(msg) from error
    if not (VERSION.fullmatch(pair.old) and VERSION.fullmatch(pair.new) and old < new):
        msg = f"{pair.name} {pair.old} is not older than {pair.new}; write the older one first"
        raise Refused(msg)


def fetched(pair: ReleasePair, scratch: Path, say: Say, get: Fetch) -> Releases:
    """Both releases unpacked, their digests compared. Raises Refused and Unavailable."""
    sdists, folders = [], []
    for version, expected in zip((pair.old, pair.new), pair.sha256, strict=True):
        say(f"{pair.title}: fetching {pair.name} {version}")
        sdist = get(pair.name, version, scratch / f"sdist-{version}")
        if expected and sdist.sha256 != expected:
            msg = f"{sdist.file} has sha256 {sdist.sha256}, but {expected} is written down for it"
            raise Refused(msg)
        sdists.append(sdist)
        folders.append(unpack(sdist, _made(scratch / f"release-{version}")))
    old, new = folders
    return Releases(pair, old, new, (sdists[0], sdists[1]), _tests_in(new, sdists[1]))


def write_code(releases: Releases, directory: Path, work: Path) -> None:
    """Write the testbed, the tests and the gold patch of a task. Raises Refused."""
    tests = releases.tests
    shutil.copytree(releases.old, directory / TESTBED, symlinks=True, ignore=COMPILED)
    shutil.copytree(
        releases.new / tests, directory / TEST_FILES / tests, symlinks=True, ignore=COMPILED
    )
    gold = directory / GOLD
    _made(gold.parent).joinpath("solve.sh").write_text(SOLVE)
    without = (*TEST_FOLDERS, *DOCUMENTATION)
    gold.write_bytes(patch_between(releases.old, releases.new, work, without=without))


async def discovered(
    releases: Releases, directory: Path, box: SuiteBox, say: Say
) -> tuple[list[str], list[str]]:
    """The tests to be mended, and those to go on passing. Raises Refused where it is no task."""
    pair, command = releases.pair, RELEASE_TESTS.format(tests=releases.tests)
    before = releases.old.with_name(f"{releases.old.name} with newer tests")
    shutil.copytree(directory / TESTBED, before, symlinks=True)
    shutil.rmtree(before / releases.tests, ignore_errors=True)
    shutil.copytree(directory / TEST_FILES, before, symlinks=True, dirs_exist_ok=True)
    say(f"{pair.title}: running its tests, twice over each release")
    after = await passing_twice(box, releases.new, command)
    old = await passing_twice(box, before, command)
    mend, keep = sorted(after - old), sorted(after & old)
    if not mend:
        both = f"{len(after):,} pass with both"
        msg = f"{pair.title} is no task: newer code passes no test that older code fails; {both}"
        raise Refused(msg)
    found = len(mend), len(keep)
    if any(known not in (-1, count) for known, count in zip(pair.counts, found, strict=True)):
        msg = "{} to mend and {} to keep".format(*found)
        expected = "{} and {}".format(*pair.counts)
        msg = f"{pair.title} has {msg} here, not {expected}; are Python and pytest other ones?"
        raise Refused(msg)
    await _proven(releases, before, directory / GOLD, {*mend, *keep}, box)
    return mend, keep


async def _proven(
    releases: Releases, before: Path, gold: Path, tests: set[str], box: SuiteBox
) -> None:
    """Apply the gold patch as it is, and run the tests. Raises Refused where one fails."""
    git(before, "init", "-q")
    if patch := gold.read_bytes():
        git(before, "apply", "-", stdin=patch)
    shutil.rmtree(before / ".git")
    failing = tests - await passing(box, before, RELEASE_TESTS.format(tests=releases.tests))
    if failing:
        msg = (
            f"{releases.pair.title} is no task: with what the newer release changes outside "
            f"{' and '.join(DOCUMENTATION)} {min(failing)} fails still ({len(failing):,} do)"
        )
        raise Refused(msg)


def write_words(
    releases: Releases, directory: Path, mend: list[str], keep: list[str], image: str
) -> None:
    """Write what the task says of itself, and to the agent."""
    import tomli_w

    pair = releases.pair
    says = {
        "version": "1.0",
        "metadata": {
            "source": "release-pair",
            "package": pair.name,
            "releases": [pair.old, pair.new],
            "sdists": {sdist.file: sdist.sha256 for sdist in releases.sdists},
        },
        "environment": {"docker_image": image, "memory_mb": 2048},
        "verifier": {
            "command": RELEASE_TESTS.format(tests=releases.tests),
            "parser": "pytest",
            "timeout_sec": 600.0,
            "replace": [releases.tests],
            "fail_to_pass": mend,
            "pass_to_pass": keep,
        },
    }
    (directory / TASK_FILE).write_text(tomli_w.dumps(says))
    (directory / INSTRUCTION).write_text(statement(pair.name, pair.old, releases.tests, mend))


def _tests_in(release: Path, sdist: Sdist) -> str:
    for name in TEST_FOLDERS:
        folder = release / name
        if any(path.is_file() for path in folder.rglob("*test*.py")):
            return name
    msg = f"{sdist.file} has no tests in it ({' or '.join(TEST_FOLDERS)}); a pair needs the newer's"
    raise Refused(msg)


def _made(directory: Path) -> Path:
    directory.mkdir(parents=True)
    return directory
