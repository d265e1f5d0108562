"""Ancestry of policy versions, from the records of train.steps.

A trainer that resumes from an older checkpoint abandons the versions announced above it; a step
then has two records. Versions name their parents, so one version identifies one branch.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol, TypeVar

from rollcall.schemas.errors import Refused
from rollcall.schemas.messages import TrainStep


class Parented(Protocol):
    """The version of a step and the version that it was made from."""

    @property
    def version(self) -> int: ...
    @property
    def parent(self) -> int: ...


S = TypeVar("S", bound=Parented)


def descent(
    by_version: Mapping[int, S], tip: int | None = None, *, over_gaps: bool = False
) -> Iterator[S]:
    """Yield the steps that a version descends from, its own first; by default of the newest.

    Stops at a step that has no record; with `over_gaps` it continues with the newest recorded
    version below.
    """
    at = max(by_version, default=-1) if tip is None else tip
    while at in by_version:
        step = by_version[at]
        yield step
        # Always downwards: a wrong parent in a record must not cause a loop.
        at = min(step.parent, at - 1)
        if over_gaps and at not in by_version:
            at = max((version for version in by_version if version < at), default=-1)


@dataclass(frozen=True, slots=True)
class Branch:
    """The steps that lead to one version, as far back as records exist."""

    version: int
    root: int
    """The version that the first of the steps was made from."""
    steps: dict[int, TrainStep]
    """The steps by number, in order."""
    abandoned: dict[int, tuple[int, ...]]
    """By step number, the versions on other branches."""

    def step_of(self, version: int) -> int | None:
        """Return the step that produced a version of this branch; None for other branches."""
        if version == self.root:
            return min(self.steps) - 1
        return next((n for n, step in self.steps.items() if step.version == version), None)

    def require(self, first: int, last: int) -> None:
        """Raise Refused unless the steps from `first` to `last` are all there."""
        if first in self.steps and last in self.steps:
            return
        low, high = min(self.steps), max(self.steps)
        gone = (number for number in range(first, last + 1) if number not in self.steps)
        others = sorted({version for number in gone for version in self.abandoned.get(number, ())})
        also = (
            f"; on other branches they made versions {_listed(others)}: name one with --version"
            if others
            else ""
        )
        missing = f"step {first} is not" if first == last else f"steps {first}..{last} are not all"
        msg = f"{missing} there: the branch of version {self.version} has steps {low}..{high}{also}"
        raise Refused(msg)


def branch_of(steps: Iterable[TrainStep], version: int | None = None) -> Branch:
    """Return the branch of a version, by default of the newest. Raises Refused if it is unknown.

    `steps` are those of one run and must not be empty.
    """
    by_version = {step.version: step for step in steps}
    tip = max(by_version) if version is None else version
    if tip not in by_version:
        msg = f"no step made version {tip}; there are versions {_listed(sorted(by_version))}"
        raise Refused(msg)
    line = list(descent(by_version, tip))
    ours = {step.step: step for step in reversed(line)}
    abandoned: dict[int, tuple[int, ...]] = {}
    for step in by_version.values():
        if ours.get(step.step) is not step:
            abandoned[step.step] = (*abandoned.get(step.step, ()), step.version)
    return Branch(tip, line[-1].parent, ours, abandoned)


def _listed(numbers: list[int]) -> str:
    """Format sorted numbers as ranges: 1..4, 7."""
    ranges: list[list[int]] = []
    for number in numbers:
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return ", ".join(str(a) if a == b else f"{a}..{b}" for a, b in ranges) or "none"
