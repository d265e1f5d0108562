"""A real task from two releases of a package: the older code, and the newer one's tests.

Tests that newer code passes and older code fails are fail-to-pass; tests that both pass are
pass-to-pass. The statement is made of the names of tests, so no description of the fix is needed.
All content from the package index stays in the task; none of it is shipped with this project.
"""

import re
import shlex
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from packaging.version import InvalidVersion, Version

from rollcall.sandbox.grading.guarded import FILES as HOW_TESTS_ARE_RUN
from rollcall.sandbox.locked_folder import scratch_folder
from rollcall.sandbox.tasks.git_trees import git, patch_between
from rollcall.sandbox.tasks.harbor import (
    GOLD,
    INSTRUCTION,
    TASK_FILE,
    TEST_FILES,
    TESTBED,
    TEXT_BYTES,
    HarborTask,
    read_task,
)
from rollcall.sandbox.tasks.proof import prove
from rollcall.sandbox.tasks.release_layout import (
    DOCUMENTATION,
    configuring,
    lacking,
    modules,
    places_of_tests,
    statement,
)
from rollcall.sandbox.tasks.sdists import NAME, VERSION, Sdist, fetch, unpack
from rollcall.sandbox.tasks.suite_runs import RELEASE_TESTS, RUNS, SuiteBox, SuiteRuns, runs_of
from rollcall.schemas.atomic_files import atomic_path, require_unused
from rollcall.schemas.errors import Refused
from rollcall.schemas.private_folders import PRIVATE, make_private
from rollcall.schemas.untrusted_text import clean_text

MADE_BY_A_BUILD = ("PKG-INFO", "*.egg-info", "*.dist-info")
COMPILED = shutil.ignore_patterns("__pycache__", "*.pyc", "*.pyo", ".git")
SOLVE = """\
#!/bin/sh
set -e
here=$(cd "$(dirname "$0")" && pwd)
cd /testbed
git apply "$here/gold.patch"
"""

IMPORTS = "PYTHONPATH=src:. python3 -c 'import {module}'"

Say = Callable[[str], None]
Fetch = Callable[[str, str, Path], Sdist]


@dataclass(frozen=True, slots=True)
class ReleasePair:
    """Two releases, with digests and counts that are compared with those found."""

    name: str
    old: str
    new: str
    sha256: tuple[str, str] = ("", "")
    """The SHA-256 of both source releases; empty accepts any."""
    counts: tuple[int, int] = (-1, -1)
    """The numbers of fail-to-pass and of pass-to-pass tests; -1 accepts any."""

    @property
    def title(self) -> str:
        return f"{self.name}-{self.old}-{self.new}"


@dataclass(frozen=True, slots=True)
class Releases:
    """Both releases, unpacked, and the places of the newer one's tests."""

    pair: ReleasePair
    old: Path
    new: Path
    sdists: tuple[Sdist, Sdist]
    tests: list[str]
    """Folders and files of tests in the newer release."""

    @property
    def laid(self) -> list[str]:
        """The paths of the newer release that are copied over the code for grading."""
        return [*self.tests, *configuring(self.new, self.tests)]

    @property
    def command(self) -> str:
        return RELEASE_TESTS.format(tests=shlex.join(self.tests))


async def build_pair(
    pair: ReleasePair, into: Path, box: SuiteBox, say: Say, *, get: Fetch = fetch
) -> HarborTask:
    """Build the task of two releases in a folder of tasks, atomically.

    Raises Refused if they make no task, Unavailable if the index is unreachable, and the box's
    WorkFailed.
    """
    check_pair(pair)
    require_unused(into / pair.title, "task")
    with scratch_folder("pair") as scratch:
        releases = fetched(pair, scratch, say, get)
        directory = scratch / "task" / pair.title
        write_code(releases, directory, scratch / "patch")
        await check_imports(releases, directory / TESTBED, box)
        mend, keep = await discovered(releases, directory, box, say)
        write_words(releases, directory, mend, keep, box.image)
        say(f"{pair.title}: judging its gold patch, and one that mends nothing")
        proof = await prove(box.driver.open, read_task(directory), spec=box.spec, times=1)
        if proof.dropped:
            say(f"{pair.title}: {proof.dropped:,} tests do not pass alone and count for nothing")
            mend, keep = list(proof.fail_to_pass), list(proof.pass_to_pass)
            write_words(releases, directory, mend, keep, box.image)
        make_private(into)
        with atomic_path(into / pair.title) as hidden:
            shutil.copytree(directory, hidden, symlinks=True)
            hidden.chmod(PRIVATE)
    return read_task(into / pair.title)


def check_pair(pair: ReleasePair) -> None:
    """Raise Refused for malformed names and versions, and for a pair in the wrong order."""
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
    """Fetch and unpack both releases, and check their digests. Raises Refused and Unavailable."""
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
    tests = places_of_tests(new)
    if not tests:
        msg = f"{sdists[1].file} has no tests in it: no folder tests, test or testing, at the top "
        msg += "or in its package, and no test_*.py at the top; a pair needs the newer's"
        raise Refused(msg)
    return Releases(pair, old, new, (sdists[0], sdists[1]), tests)


def write_code(releases: Releases, directory: Path, work: Path) -> None:
    """Write the testbed, the tests and the gold patch of a task. Raises Refused."""
    testbed = directory / TESTBED
    shutil.copytree(releases.old, testbed, symlinks=True, ignore=COMPILED)
    write_metadata(testbed, releases.pair)
    for place in releases.laid:
        _copy(releases.new / place, directory / TEST_FILES / place)
    gold = directory / GOLD
    _made(gold.parent).joinpath("solve.sh").write_text(SOLVE)
    older = places_of_tests(releases.old)
    without = {*releases.laid, *older, *configuring(releases.old, older), *DOCUMENTATION}
    without |= {
        str(path.relative_to(root))
        for root in (releases.old, releases.new)
        for pattern in (*HOW_TESTS_ARE_RUN, *MADE_BY_A_BUILD)
        for path in root.rglob(pattern)
    }
    gold.write_bytes(patch_between(releases.old, releases.new, work, without=without))
    if not gold.read_bytes():
        msg = f"{releases.pair.title} is no task: the newer release changes nothing but its tests, "
        msg += f"how they are run, and {' and '.join(DOCUMENTATION)}"
        raise Refused(msg)


def write_metadata(testbed: Path, pair: ReleasePair) -> None:
    """Write package metadata, so that code finds its own version as if it were installed."""
    if any(testbed.glob("*.egg-info")) or any(testbed.glob("src/*.egg-info")):
        return
    if (about := testbed / "PKG-INFO").is_file():
        name = re.sub(r"[-_.]+", "_", pair.name)
        place = _made(testbed / f"{name}-{pair.old}.dist-info")
        shutil.copyfile(about, place / "METADATA")


async def check_imports(releases: Releases, testbed: Path, box: SuiteBox) -> None:
    """Raise Refused if no module of the older release can be imported in the box."""
    names, said = modules(releases.old), ""
    for name in names:
        ran = await box.run(testbed, IMPORTS.format(module=name))
        if ran.exit_code == 0:
            return
        said = ran.output
    if names:
        pair = releases.pair
        why = lacking(said, releases.old, pair.name)
        last = (said.strip().splitlines() or ["nothing was printed"])[-1]
        msg = f"{pair.name} {pair.old} cannot be imported in the box: {why or last}"
        raise Refused(clean_text(msg, 500))


async def discovered(
    releases: Releases, directory: Path, box: SuiteBox, say: Say
) -> tuple[list[str], list[str]]:
    """Return fail-to-pass and pass-to-pass tests. Raises Refused if the pair makes no task."""
    pair = releases.pair
    before = releases.old.with_name(f"{releases.old.name} with newer tests")
    shutil.copytree(directory / TESTBED, before, symlinks=True)
    for place in releases.laid:
        _remove(before / place)
    shutil.copytree(directory / TEST_FILES, before, symlinks=True, dirs_exist_ok=True)
    mended = before.with_name(f"{before.name}, mended")
    shutil.copytree(before, mended, symlinks=True)
    git(mended, "init", "-q")
    git(mended, "apply", "-", stdin=(directory / GOLD).read_bytes())
    shutil.rmtree(mended / ".git")
    say(f"{pair.title}: running its tests, {RUNS} times with and without what it changes")
    after = await runs_of(box, mended, releases.command)
    if (size := sum(len(test.encode()) for test in after.always)) > TEXT_BYTES:
        msg = f"{pair.title} has {len(after.always):,} tests, whose names are {size:,} bytes; "
        msg += f"{TASK_FILE} may have {TEXT_BYTES:,}"
        raise Refused(msg)
    old = await runs_of(box, before, releases.command)
    if flaky := after.flaky | old.flaky:
        few = ", ".join(sorted(flaky)[:3])
        say(f"{pair.title}: {len(flaky):,} flaky tests count for nothing: {few}")
    mend, keep = sorted(after.always - old.ever), sorted(after.always & old.always)
    if not mend:
        raise Refused(clean_text(_nothing_to_mend(releases, after), 600))
    found = len(mend), len(keep)
    if any(known not in (-1, count) for known, count in zip(pair.counts, found, strict=True)):
        msg = "{} to mend and {} to keep".format(*found)
        expected = "{} and {}".format(*pair.counts)
        msg = f"{pair.title} has {msg} here, not {expected}; are Python and pytest other ones?"
        raise Refused(msg)
    return mend, keep


def _nothing_to_mend(releases: Releases, after: SuiteRuns) -> str:
    both = f"{len(after.always):,} pass with both"
    msg = f"{releases.pair.title} is no task: newer code passes no test that older code fails; "
    lack = lacking(after.said, releases.new, releases.pair.name)
    return f"{msg}{both}" + (f"; a test cannot be imported without {lack}" if lack else "")


def write_words(
    releases: Releases, directory: Path, mend: list[str], keep: list[str], image: str
) -> None:
    """Write `task.toml` and `instruction.md`."""
    import tomli_w

    pair = releases.pair
    says = {
        "version": "1.0",
        "metadata": {
            "source": "release-pair",
            "proven": True,
            "package": pair.name,
            "releases": [pair.old, pair.new],
            "sdists": {sdist.file: sdist.sha256 for sdist in releases.sdists},
        },
        "environment": {"docker_image": image, "memory_mb": 2048},
        "verifier": {
            "command": releases.command,
            "parser": "pytest",
            "timeout_sec": 600.0,
            "replace": releases.laid,
            "fail_to_pass": mend,
            "pass_to_pass": keep,
        },
    }
    (directory / TASK_FILE).write_text(tomli_w.dumps(says))
    (directory / INSTRUCTION).write_text(statement(pair.name, pair.old, releases.tests, mend))


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        shutil.copytree(source, target, symlinks=True, ignore=COMPILED)
    else:
        shutil.copy2(source, target)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _made(directory: Path) -> Path:
    directory.mkdir(parents=True)
    return directory
