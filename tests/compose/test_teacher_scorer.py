"""`teacher:DIRECTORY`: a scorer with weights of its own, beside those by name."""

from dataclasses import replace
from pathlib import Path

import pytest

from rollcall.compose.teacher_scorer import check_named, scorer_spec, teacher_directory
from rollcall.sandbox.scorers import score
from rollcall.schemas.errors import Refused
from rollcall.schemas.messages import ScoredTrajectory, Sequence, Trajectory
from rollcall.schemas.packed import logprobs_of
from tests.support.policies import lake
from tests.support.scored_trajectories import ended, sequence


def judged(trajectory: Trajectory, *names: str) -> ScoredTrajectory:
    specs = [scorer_spec(name) for name in names]
    return score(
        trajectory, specs, scoring_id="s", source_topic="t", source_partition=0, source_offset=0
    )


def rollout(*sequences: Sequence) -> Trajectory:
    return replace(ended(), sequences=sequences)


def test_teacher_scores_tokens_and_leaves_the_reward_unchanged(tmp_path: Path) -> None:
    name = f"teacher:{lake(tmp_path / 'p')}"

    scored = judged(
        rollout(sequence([0, 7, 1, 3], [0, 0, 0, 1]), sequence([0, 1, 4], [0, 0, 1])),
        "environment_return",
        name,
    )

    assert [each.value for each in scored.rewards] == [1.25, 0.0]
    assert scored.total == 1.25
    assert "2 tokens" in scored.rewards[1].reason
    assert [(each.scorer, each.sequence) for each in scored.token_scores] == [(name, 0), (name, 1)]
    first = logprobs_of(scored.token_scores[0].scores)
    assert first[:3].tolist() == [0.0] * 3
    assert first[3] < 0


def test_unknown_teacher_tokens_leave_the_rollout_without_a_reward(
    tmp_path: Path,
) -> None:
    scored = judged(rollout(sequence([0, 99], [0, 1])), f"teacher:{lake(tmp_path / 'p')}")

    assert (scored.total, scored.token_scores) == (None, ())
    assert "token 99 is none of the teacher's 32" in scored.reason


def test_directory_without_a_policy_is_refused_before_loading(
    tmp_path: Path,
) -> None:
    with pytest.raises(Refused, match="no policy at"):
        check_named(f"teacher:{tmp_path}")
    with pytest.raises(Refused, match="no policy at"):
        scorer_spec(f"teacher:{tmp_path / 'none'}*2")
    with pytest.raises(Refused, match="is no number"):
        scorer_spec("environment_return*x")
    assert teacher_directory("environment_return") is None
