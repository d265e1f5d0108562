"""The steps from which a version descends."""

from collections.abc import Iterable

import pytest

from rollcall.schemas.messages import TrainStep
from rollcall.trainer.weights.branches import branch_of, descent


def step(version: int, parent: int, number: int) -> TrainStep:
    return TrainStep("policy", "run", number, version, parent, (), {})


ABANDONED = step(2, 1, 2)
STEPS = [step(1, 0, 1), ABANDONED, step(3, 1, 2), step(4, 3, 3)]


def versions(steps: Iterable[TrainStep], tip: int | None = None, **how: bool) -> list[int]:
    return [each.version for each in descent({s.version: s for s in steps}, tip, **how)]


def test_versions_of_an_abandoned_branch_are_skipped() -> None:
    assert versions(STEPS) == [4, 3, 1]
    assert versions(STEPS, 2) == [2, 1]
    assert versions([]) == []


@pytest.mark.parametrize(("over_gaps", "expected"), [(False, [4]), (True, [4, 2, 1])])
def test_a_missing_record_ends_the_descent_or_is_skipped(
    over_gaps: bool, expected: list[int]
) -> None:
    without_parent = [each for each in STEPS if each.version != 3]

    assert versions(without_parent, over_gaps=over_gaps) == expected


def test_a_step_that_is_its_own_ancestor_causes_no_endless_loop() -> None:
    assert versions([step(1, 2, 1), step(2, 2, 2)]) == [2, 1]


def test_a_branch_knows_its_root_and_the_versions_of_others() -> None:
    branch = branch_of(STEPS)

    assert (branch.version, branch.root, list(branch.steps)) == (4, 0, [1, 2, 3])
    assert branch.abandoned == {2: (ABANDONED.version,)}
    assert [branch.step_of(version) for version in (0, 1, 3, 2)] == [0, 1, 2, None]
