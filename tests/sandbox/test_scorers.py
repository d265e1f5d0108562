"""Scorers: several at once, tolerant of garbage, one record per trajectory."""

import json
import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollcall.sandbox.environment import make_environment
from rollcall.sandbox.scorers import (
    ScorerSpec,
    check_scorer,
    environment_return,
    reasoning_gym,
    score,
    verdict_right,
)
from rollcall.schemas.errors import Refused
from rollcall.schemas.messages import (
    Message,
    ScoredTrajectory,
    Task,
    Trajectory,
)
from tests.support.said_trajectories import sequence, trajectory

HERE = "tests.sandbox.test_scorers"


def three(trajectory: Trajectory) -> float:
    return 3.0


def raises(trajectory: Trajectory) -> float:
    msg = "no tests were found"
    raise LookupError(msg)


def leaves(trajectory: Trajectory) -> float:
    raise SystemExit(1)


def not_a_number(trajectory: Trajectory) -> float:
    return math.nan


def huge(trajectory: Trajectory) -> float:
    return 1e308


def none(trajectory: Trajectory) -> None:
    """A scorer that forgot to return."""


def judged(judge: Trajectory, *specs: ScorerSpec) -> ScoredTrajectory:
    return score(
        judge,
        specs,
        scoring_id="s",
        source_topic="rl.trajectories",
        source_partition=2,
        source_offset=7,
    )


def mine(name: str, weight: float = 1.0) -> ScorerSpec:
    return ScorerSpec(f"{HERE}:{name}", weight)


@given(st.lists(st.floats(-1e6, 1e6), max_size=20))
def test_environment_return_is_the_sum_of_rewards(rewards: list[float]) -> None:
    assert environment_return(trajectory(*rewards)) == sum(rewards)


def test_total_is_the_weighted_sum_of_scores() -> None:
    scored = judged(trajectory(0.5, 1.0), ScorerSpec("environment_return", 2.0), mine("three", -1))

    assert [(r.value, r.weight, r.reason) for r in scored.rewards] == [
        (1.5, 2.0, ""),
        (3.0, -1, ""),
    ]
    assert (scored.total, scored.reason) == (0.0, "")
    assert (scored.source_topic, scored.source_partition, scored.source_offset) == (
        "rl.trajectories",
        2,
        7,
    )


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("raises", "LookupError: no tests were found"),
        ("leaves", "SystemExit: 1"),
        ("not_a_number", "it gave nan"),
        ("none", "TypeError"),
        ("misspelt", "has no 'misspelt'"),
    ],
)
def test_failed_scorer_removes_the_total_but_keeps_other_scores(name: str, reason: str) -> None:
    scored = judged(trajectory(1.0), mine("three"), mine(name))

    first, second = scored.rewards
    assert first.value == 3.0
    assert second.value is None
    assert reason in second.reason
    assert scored.total is None
    assert reason in scored.reason
    assert name in scored.reason


def test_infinite_total_becomes_none() -> None:
    scored = judged(trajectory(), mine("huge", 10.0))

    assert (scored.rewards[0].value, scored.total) == (1e308, None)
    assert "inf" in scored.reason


def test_without_scorers_there_is_no_total() -> None:
    assert judged(trajectory(1.0)).total is None


@pytest.mark.parametrize(
    ("status", "code", "reason"),
    [("timed_out", "", "timed_out"), ("failed", "tries", "failed/tries"), ("other", "", "other")],
)
def test_unfinished_rollout_gives_a_record_without_a_total(
    status: str, code: str, reason: str
) -> None:
    ended = replace(trajectory(1.0, status=status), code=code)

    scored = judged(ended, ScorerSpec("environment_return"))

    assert (scored.trajectory, scored.rewards) == (ended, ())
    assert (scored.total, scored.reason) == (None, reason)


def question(dataset: str, seed: int) -> Task:
    return Task("reasoning_gym", json.dumps({"dataset": dataset}), seed)


def expected_of(task: Task) -> str:
    """The answer that earns 1."""
    environment = make_environment(task.environment, task.environment_config)
    environment.open(task.seed)
    return str(environment.step("?").info["expected"])


def test_answer_is_regraded_independently_of_the_environment_reward() -> None:
    task = question("chain_sum", 5)
    environment = make_environment(task.environment, task.environment_config)
    environment.open(task.seed)
    expected = str(environment.step("?").info["expected"])

    right = trajectory(0.0, task=task, said=expected)
    wrong = trajectory(1.0, task=task, said="no idea")

    assert reasoning_gym(right) == 1.0
    assert reasoning_gym(wrong) < 0.1
    assert judged(right, ScorerSpec("reasoning_gym")).total == 1.0


@pytest.mark.parametrize(
    ("first", "verdict", "right"),
    [
        ("EXPECTED", "Yes", 1.0),
        ("EXPECTED", " no ", 0.0),
        ("nonsense", "No", 1.0),
        ("nonsense", "yes", 0.0),
        ("EXPECTED", "maybe", 0.0),
        ("nonsense", "", 0.0),
    ],
)
def test_verdict_scores_one_if_it_matches_the_dataset_grade(
    first: str, verdict: str, right: float
) -> None:
    task = question("syllogism", 5)
    told = json.dumps({"first": first.replace("EXPECTED", expected_of(task)), "verdict": verdict})

    assert verdict_right(replace(trajectory(task=task), result=told)) == right


def test_verdict_is_graded_on_the_shown_answer() -> None:
    task = question("syllogism", 5)

    def earned(first: str, shown: str) -> float:
        told = json.dumps({"first": first, "verdict": "Yes", "shown": shown})
        return verdict_right(replace(trajectory(task=task), result=told))

    assert earned("nonsense", expected_of(task)) == 1.0
    assert earned(expected_of(task), "nonsense") == 0.0


@pytest.mark.parametrize("result", ["", "[]", "{}", '{"first": 3}', "not json"])
def test_rollout_without_a_verdict_has_no_total(result: str) -> None:
    task = question("syllogism", 5)

    scored = judged(replace(trajectory(task=task), result=result), ScorerSpec("verdict_right"))

    assert scored.total is None


@pytest.mark.parametrize("dataset", ["chain_sum", "prime_factorization", "boxnet", "syllogism"])
@pytest.mark.parametrize("said", ["", "asdf ☃", "{", "0", "9" * 5000, "1/0"])
def test_garbage_answer_earns_at_most_one_tenth(dataset: str, said: str) -> None:
    scored = judged(trajectory(task=question(dataset, 3), said=said), ScorerSpec("reasoning_gym"))

    assert scored.total is not None
    assert 0.0 <= scored.total <= 0.1


def test_last_sequence_with_an_assistant_message_is_graded() -> None:
    task = question("syllogism", 3)
    ended = trajectory(task=task, said="overruled")
    spoken = replace(ended, sequences=(*(ended.sequences or ()), sequence(Message("user", "hm"))))

    assert reasoning_gym(spoken) == reasoning_gym(ended)


@pytest.mark.parametrize(
    ("odd", "reason"),
    [
        (trajectory(said="1"), "environment is ''"),
        (replace(trajectory(), request=None), "no request"),
        (replace(trajectory(task=question("chain_sum", 1)), sequences=()), "says nothing"),
        (trajectory(task=question("ransom_note", 1), said="True"), "differ between processes"),
        (trajectory(task=question("chain_sun", 1), said="1"), "did you mean 'chain_sum'"),
    ],
)
def test_ungradable_trajectory_has_a_reason(odd: Trajectory, reason: str) -> None:
    scored = judged(odd, ScorerSpec("reasoning_gym"))

    assert scored.total is None
    assert reason in scored.reason


def test_steps_stored_behind_a_claim_are_not_scored_as_empty() -> None:
    scored = judged(replace(trajectory(), steps=None), ScorerSpec("environment_return"))

    assert (scored.total, "claim" in scored.reason) == (None, True)


@pytest.mark.parametrize("name", ["environment_return", "reasoning_gym", f"{HERE}:three"])
def test_existing_scorer_names_are_accepted(name: str) -> None:
    check_scorer(name)


def test_misspelt_scorer_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(Refused, match="did you mean 'environment_return'"):
        check_scorer("enviroment_return")
