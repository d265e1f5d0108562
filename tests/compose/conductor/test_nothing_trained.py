"""A run with rollouts that are never trained on is refused at its start, or ends by name."""

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollcall.compose.conductor.in_memory import run_in_memory
from rollcall.compose.conductor.live_panel import line
from rollcall.compose.conductor.run_watch import KeepsFailing, NothingTrained, RunWatch, watch_of
from rollcall.compose.runs import run_folder
from rollcall.compose.runs.recipe import parse_recipe
from rollcall.compose.settings import Settings
from rollcall.consumers.heldout import HeldOut, HeldOutPlan
from rollcall.consumers.history.runs.run_figures import RunFigures
from rollcall.consumers.history.runs.untrained import Untrained
from rollcall.schemas.errors import Refused
from rollcall.schemas.messages import (
    RolloutRequest,
    Sampling,
    ScoredTrajectory,
    Task,
    TrainStep,
    Trajectory,
)
from tests.support.scored_trajectories import CURATION, scored, sequence
from tests.support.tiny_run import RECIPE

PLAN = HeldOutPlan(RolloutRequest("", Task(), run_id="run"), (0, 4), 1, 1.0, 0.5)
GIVE_UP = 40


def says_none(trajectory: Trajectory) -> None:
    del trajectory


def says_nan(trajectory: Trajectory) -> float:
    del trajectory
    return float("nan")


def raises(trajectory: Trajectory) -> float:
    del trajectory
    msg = "the judge is away"
    raise OSError(msg)


def pays_too_much(trajectory: Trajectory) -> float:
    del trajectory
    return 1e12


def recipe_of(tmp_path: Path, text: str) -> str:
    path = tmp_path / "tiny.toml"
    path.write_text(text)
    return str(path)


def in_memory(tmp_path: Path, text: str) -> dict[str, Any]:
    return run_in_memory(recipe_of(tmp_path, text), Settings(), seed=1, summary=None)


@pytest.mark.parametrize(
    ("scorer", "said"),
    [
        ("says_none", r"no_reward \(100 %\)|unscored \(100 %\)"),
        ("raises", r"no_reward \(100 %\).*the judge is away|unscored \(100 %\)"),
        ("says_nan", r"no_reward \(100 %\)|unscored \(100 %\)"),
        ("pays_too_much", r"cannot be trained on: unscored \(100 %\)"),
    ],
)
def test_run_without_usable_rewards_ends_by_name(tmp_path: Path, scorer: str, said: str) -> None:
    text = RECIPE.replace("[task]", f'scorers = ["{__name__}:{scorer}"]\n[task]', 1)

    with pytest.raises((KeepsFailing, NothingTrained), match=said):
        in_memory(tmp_path, text)


def test_temperature_unlike_the_learners_is_refused_at_the_start(
    tmp_path: Path,
) -> None:
    hot = RECIPE.replace("[sampling]", "[sampling]\ntemperature = 0.7")

    with pytest.raises(Refused, match=r"temperature is 0\.7 and the learner's is 1, .*\[learner\]"):
        in_memory(tmp_path, hot)
    agreed = parse_recipe(hot.replace("[learner]", "[learner]\ntemperature = 0.7"), "tiny")
    run_folder.create(tmp_path, agreed, hot, seed=1)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ("group_size = 1\nadvantage = 'grpo'", "compares in groups; raise it to 2"),
        ("group_size = 1\nfilters = ['zero_variance']", "the filters keep none"),
        ("groups_per_step = 1", "groups_per_step is 1, .* compares the groups of a batch"),
    ],
)
def test_learner_that_could_never_learn_is_refused_at_the_start(
    tmp_path: Path, values: str, said: str
) -> None:
    kept = [
        row
        for row in RECIPE.splitlines()
        if row.partition(" = ")[0] not in {v.partition(" = ")[0] for v in values.splitlines()}
    ]
    text = "\n".join(kept).replace("[learner]", f"[learner]\n{values}")

    with pytest.raises(Refused, match=said):
        in_memory(tmp_path, text)


def test_patience_and_limit_come_from_the_recipe(tmp_path: Path) -> None:
    text = "give_up = 7\n" + RECIPE
    folder = run_folder.create(tmp_path, parse_recipe(text, "tiny"), text, seed=1)

    watch = watch_of(folder)

    assert (watch.give_up, watch.batch) == (7 * 4, 2 * 4)
    assert watch.curation is not None
    assert parse_recipe(RECIPE, "tiny").give_up == 2000


USABLE = st.booleans()
REWARDS = st.sampled_from([0.0, 0.0, 1.0])


def record(number: int, reward: float, *, usable: bool) -> ScoredTrajectory:
    sampling = Sampling() if usable else Sampling(temperature=0.5)
    made = scored(f"r-{number}", reward, sequences=(sequence([1, 2], [0, 1]),), sampling=sampling)
    return replace(made, scoring_id="s")


def step(version: int) -> TrainStep:
    return TrainStep("policy", "run", version, version, version - 1, (), {"used": 2.0})


def figures() -> RunFigures:
    return RunFigures("run", "s", HeldOut(PLAN), untrained=Untrained(CURATION))


@given(st.lists(st.one_of(st.tuples(USABLE, REWARDS), st.just(None)), max_size=60))
def test_only_rollouts_since_the_last_step_are_counted(
    ends: list[tuple[bool, float] | None],
) -> None:
    told, since, version = figures(), list[tuple[bool, float]](), 0
    for number, end in enumerate(ends):
        if end is None:
            version += 1
            told.take_step(step(version))
            since.clear()
        else:
            told.take_scored(record(number, end[1], usable=end[0]), 1000 + number, 0.0)
            since.append(end)

    found = told.untrained
    assert found is not None
    lost = [end for end in since if not end[0]]
    streak = next((n for n, end in enumerate(reversed(since)) if end[0]), len(since))
    assert (found.ended, found.in_a_row) == (len(since), streak)
    assert found.by_reason == Counter({"sampling_not_followed": len(lost)} if lost else {})
    if streak >= 5 or len(since) >= GIVE_UP:
        with pytest.raises(NothingTrained):
            RunWatch(9, 5, CURATION, batch=2, give_up=GIVE_UP).require_progress(told)
    else:
        RunWatch(9, 5, CURATION, batch=2, give_up=GIVE_UP).require_progress(told)


def test_run_with_equal_rewards_in_all_groups_reports_it_and_stops() -> None:
    told, watch = figures(), RunWatch(9, 5, CURATION, batch=2, give_up=GIVE_UP)
    for number in range(GIVE_UP):
        told.take_scored(record(number, 0.0, usable=True), 1000 + number, 0.0)

    words = "40 rollouts ended without a step: 40 can be trained on, and all of them earned 0"
    assert words in line(told, 0.0, watch)
    with pytest.raises(NothingTrained, match=r"give_up of its recipe.*all of them earned 0"):
        watch.require_progress(told)
    told.take_step(step(1))
    watch.require_progress(told)


def test_rollouts_trained_on_after_a_limit_are_not_failures() -> None:
    told, watch = figures(), RunWatch(9, 5, CURATION, batch=2, give_up=GIVE_UP)
    assert told.untrained is not None
    told.untrained.curation = replace(CURATION, admits_limits=frozenset({"turn_limit"}))
    for number in range(20):
        one = record(number, 0.0, usable=True)
        ended = replace(one.trajectory, status="truncated", code="turn_limit")
        told.take_scored(replace(one, trajectory=ended), 1000 + number, 0.0)

    assert told.failures.count == 20
    watch.require_progress(told)


def test_rollouts_before_the_resume_do_not_end_a_run() -> None:
    told = replace(figures(), watched_from_ms=5000)
    for number in range(50):
        told.take_scored(record(number, 0.0, usable=False), 1000 + number, 0.0)

    RunWatch(9, 5, CURATION, batch=2, give_up=GIVE_UP).require_progress(told)
    assert told.rollouts == 50
    assert told.untrained is not None
    assert told.untrained.ended == 0
