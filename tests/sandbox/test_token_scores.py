"""Scores for single tokens: one finite number a token, or a scorer error with its reason."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest

from rollcall.sandbox.scorers import (
    ScorerResult,
    ScorerSpec,
    read_result,
    result_of,
    score,
    with_rewards,
)
from rollcall.sandbox.token_scores import PerToken
from rollcall.schemas.messages import Reward, ScoredTrajectory, Sequence, TokenScores, Trajectory
from rollcall.schemas.packed import logprobs_of, pack_ids, pack_logprobs
from tests.support.said_trajectories import trajectory

HERE = "tests.sandbox.test_token_scores"


def ended(*lengths: int) -> Trajectory:
    return replace(trajectory(1.0), sequences=tuple(map(sequence_of, lengths)))


def sequence_of(tokens: int) -> Sequence:
    ids, numbers = pack_ids(range(tokens)), pack_logprobs([0.0] * tokens)
    return Sequence(ids, bytes(tokens), numbers, pack_ids([-1] * tokens), b"\xff" * tokens, ())


def of_places(ended: Trajectory) -> PerToken:
    sequences = enumerate(ended.sequences or ())
    return PerToken(0.5, {n: np.arange(len(each.loss_mask)) / 2 for n, each in sequences}, "so so")


async def awaits(ended: Trajectory) -> PerToken:
    return PerToken(2.0, {0: [1.0] * len((ended.sequences or ())[0].loss_mask)})


def judged(ended: Trajectory, *names: str) -> ScoredTrajectory:
    specs = [ScorerSpec(f"{HERE}:{name}", 2.0) for name in names]
    return score(
        ended, specs, scoring_id="s", source_topic="t", source_partition=0, source_offset=0
    )


def test_scorer_may_give_one_number_and_scores_per_token() -> None:
    scored = judged(ended(3, 1), "of_places")

    name = f"{HERE}:of_places"
    assert scored.rewards == (Reward(name, 0.5, "so so", 2.0),)
    assert scored.total == 1.0
    assert scored.token_scores == (
        TokenScores(name, 0, pack_logprobs([0.0, 0.5, 1.0])),
        TokenScores(name, 1, pack_logprobs([0.0])),
    )


def test_unfinished_rollout_has_no_token_scores() -> None:
    assert judged(replace(ended(3), status="failed"), "of_places").token_scores == ()


def test_token_scores_of_an_async_scorer_come_with_its_reward() -> None:
    open_ = judged(ended(2), "of_places", "awaits")
    spec = ScorerSpec(f"{HERE}:awaits")

    opinion = result_of(spec, open_.trajectory, PerToken(2.0, {0: [1.0, -1.0]}))
    scored = with_rewards(open_, {1: opinion})

    assert [each.value for each in scored.rewards] == [0.5, 2.0]
    assert [each.scorer for each in scored.token_scores] == [f"{HERE}:of_places", spec.name]


@pytest.mark.parametrize(
    ("tokens", "reason"),
    [
        ({0: [1.0]}, "1 scores for the 3 tokens of sequence 0"),
        ({0: []}, "0 scores for the 3 tokens of sequence 0"),
        ({0: [1.0] * 4}, "4 scores for the 3 tokens"),
        ({0: [[1.0], [2.0], [3.0]]}, "3 scores for the 3 tokens"),
        ({2: [1.0]}, "it scored sequence 2, but there are 2"),
        ({-1: [1.0]}, "it scored sequence -1, but there are 2"),
        ({0: [0.0, math.nan, 0.0]}, "token 1 of sequence 0 the score nan"),
        ({0: [0.0, 0.0, -math.inf]}, "token 2 of sequence 0 the score -inf"),
        ({0: [1e39, 0.0, 0.0]}, "token 0 of sequence 0 the score inf"),
        ({0: ["x", 0.0, 0.0]}, "could not convert string"),
        ({0: None}, "not iterable"),
        ({"0": [1.0]}, "not supported between"),
        ([1.0], "indices must be integers"),
    ],
)
def test_invalid_token_scores_fail_their_scorer_with_a_reason(tokens: Any, reason: str) -> None:
    wrong = PerToken(1.0, cast("Mapping[int, Iterable[float]]", tokens))

    opinion = result_of(ScorerSpec("mine"), ended(3, 1), wrong)

    assert (opinion.reward.value, opinion.tokens) == (None, ())
    assert reason in opinion.reward.reason


def test_infinite_score_discards_its_token_scores() -> None:
    found = read_result(PerToken(math.inf, {0: [0.0] * 3}))

    assert result_of(ScorerSpec("mine"), ended(3), found) == ScorerResult(
        Reward("mine", None, "it gave inf")
    )


def test_token_scores_are_float32_like_log_probabilities() -> None:
    [opinion] = result_of(ScorerSpec("mine"), ended(1), PerToken(0.0, {0: [-0.1]})).tokens

    assert logprobs_of(opinion.scores).tolist() == [np.float32(-0.1)]
