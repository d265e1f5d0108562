"""Repeated runs of a release's tests in boxes, to find the tests that always pass."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from rollcall.sandbox.boxes.box import (
    VARIABLES,
    BoxLimits,
    CommandResult,
    Driver,
    Spec,
    check_box,
    driver,
)
from rollcall.sandbox.grading.parsers import PYTEST_SUMMARY, pytest_summary
from rollcall.sandbox.grading.verdict import PASSED
from rollcall.schemas.errors import Refused, WorkFailed
from rollcall.schemas.untrusted_text import clean_text

PYTEST = "python3 -m pytest -q -rA -p no:cacheprovider -o addopts= -W ignore"
"""The command that reports every test, without the options that a project sets for pytest."""
RELEASE_TESTS = (
    "PYTEST_DISABLE_PLUGIN_AUTOLOAD=1 PYTHONPATH=src:. "
    f"{PYTEST} --continue-on-collection-errors {{tests}}"
)
"""The command for a release, without plugins: also those that a release contains are not loaded."""
NO_PYTEST = "No module named pytest"
REMEDY = (
    "install Debian's python3-pytest, name an image that holds it by --image, or for the box "
    "local the directory of another python3 by --path"
)
MOST_CHARS = 16 << 20
LONGEST_S = 900.0
RUNS = 5
"""The number of runs in which a test must have the same outcome; others are not used."""


@dataclass(frozen=True, slots=True)
class SuiteBox:
    """The boxes that tests are run in, a new one each time."""

    driver: Driver
    image: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    timeout_s: float = LONGEST_S

    @property
    def spec(self) -> Spec:
        return Spec(image=self.image, limits=BoxLimits(memory_bytes=2 << 30), env=self.env)

    async def run(self, tree: Path, command: str) -> CommandResult:
        """Run a command in a new box with a copy of a directory. Raises WorkFailed."""
        box = await self.driver.open(self.spec)
        try:
            await box.copy_in(tree)
            return await box.run(
                ("/bin/sh", "-c", command), timeout_s=self.timeout_s, most_chars=MOST_CHARS
            )
        finally:
            await box.close()


async def suite_box(name: str, image: str = "", programs: Path | None = None) -> SuiteBox:
    """Return boxes of a driver, for the running event loop, after checking that it can open them.

    `programs` is a directory that is put first in the box's PATH. A box of the image is opened, so
    that nothing is fetched for an image that does not exist. Raises Refused.
    """
    variables = programs_first(programs)
    chosen = driver(check_box(name)).of(Spec(image=image))
    if why := await chosen.unavailable():
        msg = f"no box of driver {chosen.name!r} can be had here: {why}; `--box local` isolates "
        msg += "nothing, and is for tests that you trust"
        raise Refused(clean_text(msg))
    if image:
        try:
            await (await chosen.open(Spec(image=image))).close()
        except WorkFailed as error:
            msg = f"no box of image {image!r} can be had here: {error}"
            raise Refused(clean_text(msg)) from error
    return SuiteBox(chosen, image, variables)


def programs_first(programs: Path | None) -> dict[str, str]:
    """Return variables with a PATH that starts with a directory. Raises Refused."""
    if programs is None:
        return {}
    if not programs.is_dir():
        msg = f"--path {programs} is no directory of programs"
        raise Refused(msg)
    return {"PATH": f"{programs.absolute()}:{VARIABLES['PATH']}"}


@dataclass(frozen=True, slots=True)
class SuiteRuns:
    """The outcomes of a tree's tests in several runs."""

    always: frozenset[str]
    """Tests that passed in every run."""
    ever: frozenset[str]
    """Tests that passed in at least one run."""
    said: str
    """The output of the last run."""

    @property
    def flaky(self) -> frozenset[str]:
        return self.ever - self.always


async def runs_of(box: SuiteBox, tree: Path, command: str, times: int = RUNS) -> SuiteRuns:
    """Run the tests `times` times, each in a new box. Raises Refused if a run has no summary."""
    runs = [await run_once(box, tree, command) for _ in range(times)]
    passed = [passed for passed, _ in runs]
    always = frozenset.intersection(*passed)
    return SuiteRuns(always, frozenset().union(*passed), runs[-1][1])


async def run_once(box: SuiteBox, tree: Path, command: str) -> tuple[frozenset[str], str]:
    """Return the tests that pass, and the output. Raises Refused if it has no summary."""
    ran = await box.run(tree, command)
    if ran.timed_out or ran.elided_chars or PYTEST_SUMMARY not in ran.output:
        why = f"exit code {ran.exit_code}: {_last(ran.output)}"
        if ran.timed_out:
            why = f"they take more than {box.timeout_s:g} s"
        elif ran.elided_chars:
            why = f"they print more than {MOST_CHARS:,} characters"
        elif NO_PYTEST in ran.output:
            why = f"the box has no pytest for its python3; {REMEDY}"
        msg = f"the tests of {tree.name} cannot be run: {why}"
        raise Refused(clean_text(msg))
    outcomes = pytest_summary(ran.output).outcomes
    passed = frozenset(test for test, outcome in outcomes.items() if outcome == PASSED)
    return passed, ran.output


def _last(output: str) -> str:
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return (lines or ["nothing was printed"])[-1][:300]
