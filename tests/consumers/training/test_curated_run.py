"""A run with curated tasks: after any kill, the next trainer has the same state."""

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rollcall.schemas.messages import RolloutRequest
from tests.support.changed_config import changed
from tests.support.staged_run import CONFIG, Stage
from tests.support.tiers import cases, examples

ACTS = st.sampled_from(["finished", "finished", "failed", "restart"])
SEVERAL = [{"name": "greso", "epoch": 2, "hard_floor": 0.0}, "adaptive_rollouts", "length_cap"]


def by_task(request: RolloutRequest) -> float:
    """Half of the tasks are solved, and one in four sometimes."""
    seed = request.task.seed
    if seed % 4 == 3:
        return float(request.sampling_seed.endswith("0"))
    return float(seed % 2)


def staged(directory: Path, curator: object, size: int = 3) -> Stage:
    config = changed(CONFIG, steps=6, group_size=size)
    return Stage(directory, config, curator=curator, tasks=8, rewards=by_task)


@settings(max_examples=examples(8), suppress_health_check=[HealthCheck.too_slow])
@given(
    st.sampled_from([SEVERAL, "filter_solved", "paced", "pass_rate"]),
    st.lists(
        st.tuples(
            st.sampled_from(["finished", "finished", "failed", "restart"]), st.integers(0, 30)
        ),
        min_size=10,
        max_size=25,
    ),
)
def test_a_restart_restores_the_same_state_from_the_log(
    curator: object, schedule: list[tuple[str, int]]
) -> None:
    with TemporaryDirectory() as directory:
        stage = staged(Path(directory), curator)
        for what, number in schedule:
            air = stage.in_the_air()
            if what == "restart":
                before = stage.trainer.curriculum
                asked = stage.asked()
                after = stage.begin().curriculum
                assert after.curators == before.curators
                assert after.outcomes.next_draw == before.outcomes.next_draw
                assert stage.asked() == asked
            elif air:
                stage.end(air[number % len(air)], what)
            stage.turn()
            assert stage.trainer.running() == len(stage.in_the_air())
        stage.drain()

        assert [step.step for step in stage.steps()] == [1, 2, 3, 4, 5, 6]


def test_solved_and_hopeless_tasks_are_drawn_less(tmp_path: Path) -> None:
    options = {"name": "greso", "easy_floor": 0.0, "hard_floor": 0.0, "easy": 0.01, "hard": 0.01}
    plain, curated = staged(tmp_path / "plain", ""), staged(tmp_path / "curated", options)
    for stage in (plain, curated):
        stage.drain()
    lately = [stage.asked()[-18:] for stage in (plain, curated)]

    dull = [sum(request.task.seed % 4 != 3 for request in each) for each in lately]

    assert dull[1] < dull[0]


def test_a_group_cut_short_by_a_crash_keeps_its_task(
    tmp_path: Path,
) -> None:
    # Given a first group of which a crash kept the last member from the log
    stage = staged(tmp_path, "filter_solved")
    stage.turn()
    asked = stage.asked()
    drawn = [request for request in asked if request.group_id == asked[-1].group_id]
    fresh = staged(tmp_path / "again", {"name": "filter_solved", "solved_at": 1e-9})
    for request in drawn[:-1]:
        value = fresh.codec.encode(fresh.topics.requests, replace(request, task=drawn[0].task))
        fresh.log.append(fresh.topics.requests, request.rollout_id.encode(), value)

    # When a trainer begins
    fresh.begin()

    # Then the missing members are requested, of the same task
    mended = [request for request in fresh.asked() if request.group_id == drawn[0].group_id]
    assert sorted(r.rollout_id for r in mended) == sorted(r.rollout_id for r in drawn)
    assert {request.task.seed for request in mended} == {drawn[0].task.seed}


def test_smaller_groups_take_up_a_whole_groups_place(tmp_path: Path) -> None:
    stage = staged(tmp_path, {"name": "adaptive_rollouts", "fewer_above": 0.0}, size=4)
    stage.rewards = lambda request: 1.0
    stage.train(5)
    before = stage.trainer.ledger
    after = stage.begin().ledger

    sizes = {request.group_size for request in stage.asked()}
    assert sizes == {4, 2}
    assert before.taken() > before.held()
    assert after.running() + after.taken() == before.running() + before.taken()
    assert after.book() == before.book()


def test_a_restart_without_curators_reads_no_trajectories(tmp_path: Path) -> None:
    stage = staged(tmp_path, "accept_all")
    stage.train(2)

    assert stage.begin().curriculum.curators == ()
    assert stage.trainer.curriculum.outcomes.next_draw == 0


@pytest.mark.parametrize("curator", cases(["", SEVERAL], [SEVERAL]))
def test_a_run_with_equal_rewards_still_ends(tmp_path: Path, curator: object) -> None:
    stage = staged(tmp_path, curator)
    stage.rewards = lambda request: 0.0
    stage.drain()

    assert len(stage.steps()) == 6
