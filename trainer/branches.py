"""Which steps a version descends from, as train.steps tells.

A trainer that went on from an older checkpoint has abandoned what was announced above it: then a
step has two records. Versions name their parents, so one version names one branch.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from schemas.errors import Refused
from schemas.messages import TrainStep


@dataclass(frozen=True, slots=True)
class Branch:
    """The steps that lead to one version, as far back as their records are there."""

    version: int
    root: int
    """The version that the first of the steps was made from."""
    steps: dict[int, TrainStep]
    """By number, in order."""
    abandoned: dict[int, tuple[int, ...]]
    """Of step numbers the versions that lie on other branches."""

    def step_of(self, version: int) -> int | None:
        """After which step a version of this branch stood; None for versions of other branches."""
        if version == self.root:
            return min(self.steps) - 1
        return next((n for n, step in self.steps.items() if step.version == version), None)

    def require(self, first: int, last: int) -> None:
        """Raise Refused unless the steps from `first` to `last` are all there."""
        if first in self.steps and last in self.steps:
            return
        low, high = min(self.steps), max(self.steps)
        others = sorted(
            {v for n in range(first, last + 1) if n not in self.steps for v in self._others(n)}
        )
        also = (
            f"; on other branches they made versions {_listed(others)}: name one with --version"
            if others
            else ""
        )
        asked = f"step {first} is not" if first == last else f"steps {first}..{last} are not all"
        msg = f"{asked} there: the branch of version {self.version} has steps {low}..{high}{also}"
        raise Refused(msg)

    def _others(self, number: int) -> tuple[int, ...]:
        return self.abandoned.get(number, ())


def branch_of(steps: Iterable[TrainStep], version: int | None = None) -> Branch:
    """The branch of a version, by default of the newest; raises Refused for one that is not there.

    `steps` are those of one run and must not be empty.
    """
    made = {step.version: step for step in steps}
    tip = max(made) if version is None else version
    if tip not in made:
        msg = f"no step made version {tip}; there are versions {_listed(sorted(made))}"
        raise Refused(msg)
    line, at = [], tip
    while at in made:
        line.append(made[at])
        at = made[at].parent
    ours = {step.step: step for step in reversed(line)}
    abandoned: dict[int, tuple[int, ...]] = {}
    for step in made.values():
        if ours.get(step.step) is not step:
            abandoned[step.step] = (*abandoned.get(step.step, ()), step.version)
    return Branch(tip, at, ours, abandoned)


def _listed(numbers: list[int]) -> str:
    """Numbers as ranges: 1..4, 7."""
    found: list[list[int]] = []
    for number in numbers:
        if found and number == found[-1][1] + 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    return ", ".join(str(a) if a == b else f"{a}..{b}" for a, b in found) or "none"
