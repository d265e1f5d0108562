"""A version's held-out figure counts only rollouts that this version sampled."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollcall.consumers.heldout import HeldOut, HeldOutPlan
from rollcall.schemas.messages import RolloutRequest, ScoredTrajectory, Task
from tests.support.scored_trajectories import scored, sequence

PLAN = HeldOutPlan(
    RolloutRequest("", Task(), run_id="run"), seeds=(0, 4), every=1, success_at=1.0, goal=0.5
)


def result(
    version: int, seed: int, total: float, served: tuple[int, ...] = (), **over: object
) -> ScoredTrajectory:
    """The result of one evaluation rollout, sampled by the version unless stated otherwise."""
    asked = list(PLAN.requests(version))[seed]
    one = scored(asked.rollout_id, total)
    by = served or (version,)
    tokens = sequence([0, *by], [0, *(1 for _ in by)], versions=[-1, *by])
    changes = {"request": asked, "sequences": (tokens,), **over}
    return replace(one, trajectory=replace(one.trajectory, **changes))


def heard(*results: ScoredTrajectory) -> HeldOut:
    heldout = HeldOut(PLAN)
    for each in results:
        heldout.take(each)
    return heldout


def test_an_evaluation_requests_one_pinned_version() -> None:
    assert [(r.policy_version, r.min_policy_version) for r in PLAN.requests(7)] == [(7, 7)] * 4


def test_results_sampled_by_another_version_are_not_counted() -> None:
    heldout = heard(
        result(3, 0, 1.0),
        result(3, 1, 0.0),
        result(3, 2, 1.0, served=(4,)),
        result(3, 3, 1.0, served=(3, 4)),
    )

    assert heldout.complete(3)
    assert len(heldout.counted(3)) == 2
    assert heldout.success(3) == 0.5
    assert heldout.curve() == [(3, 0.5)]


def test_the_goal_is_reached_only_by_complete_results_of_the_version() -> None:
    ours = [result(3, seed, 1.0) for seed in range(4)]

    assert heard(*ours).reached_by(3)
    assert not heard(*ours[:3]).reached_by(3)
    assert not heard(*ours[:3], result(3, 3, 1.0, served=(4,))).reached_by(3)


def test_an_evaluation_without_counted_results_is_not_on_the_curve() -> None:
    heldout = heard(*(result(3, seed, 1.0, served=(4,)) for seed in range(4)))

    assert heldout.complete(3)
    assert heldout.curve() == []
    assert not heldout.reached_by(3)


def test_a_rollout_with_a_program_error_counts_as_failed() -> None:
    heldout = heard(result(3, 0, 0.0, status="failed", reason="raised", sequences=(), policies=()))

    assert [(r.success, r.counts) for r in heldout.counted(3)] == [(False, True)]


FAILED = {"status": "failed", "code": "bad_config", "sequences": (), "policies": ()}


def failed(version: int, seed: int) -> ScoredTrajectory:
    return replace(result(version, seed, 0.0, **FAILED), total=None)  # type: ignore[arg-type]


@given(st.lists(st.sampled_from(["succeeded", "not", "failed"]), min_size=4, max_size=4))
def test_success_is_the_share_of_all_unless_all_failed(ends: list[str]) -> None:
    results = [
        failed(3, seed) if end == "failed" else result(3, seed, float(end == "succeeded"))
        for seed, end in enumerate(ends)
    ]

    [measured] = heard(*results).measured()

    assert (measured.failed, measured.rollouts) == (ends.count("failed"), 4)
    if measured.failed == 4:
        assert measured.success is None
        assert str(measured) == "v3 not measured: 4 of 4 failed"
    else:
        assert measured.success == ends.count("succeeded") / 4
        assert ("failed" in str(measured)) == (measured.failed > 0)


def test_an_unmeasured_version_reaches_no_goal() -> None:
    plan = replace(PLAN, goal=0.0)
    heldout = HeldOut(plan)
    for seed in range(4):
        heldout.take(failed(3, seed))

    assert heldout.complete(3)
    assert not heldout.reached_by(3)


@pytest.mark.parametrize(
    "lost",
    [
        {"status": "failed", "reason": "program 'react' raised WishFailed: version_gone: it is"},
        {"sequences": None},
    ],
)
def test_a_rollout_of_a_lost_or_unknown_version_does_not_count(
    lost: dict[str, object],
) -> None:
    heldout = heard(result(3, 0, 0.0, **lost))  # type: ignore[arg-type]

    assert heldout.results[3]
    assert heldout.counted(3) == []


@pytest.mark.parametrize("version", ["", "²", "9" * 5000, "-1", "3/x"])
def test_a_group_without_a_valid_version_is_ignored(version: str) -> None:
    one = result(3, 0, 1.0)
    request = one.trajectory.request
    assert request
    forged = replace(request, group_id=f"run/heldout/{version}")

    assert (
        HeldOut(PLAN).take(replace(one, trajectory=replace(one.trajectory, request=forged))) is None
    )
