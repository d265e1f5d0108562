"""Rollouts that ended at a limit, and answers without ids."""

from dataclasses import replace
from typing import Any

import pytest

from rollcall.schemas.messages import ScoredTrajectory
from rollcall.trainer.config.learner_config import LearnerConfig
from rollcall.trainer.curation.buffer import Buffer
from rollcall.trainer.curation.judge import UNASKED, judge
from rollcall.trainer.rules.samples import LIMITS
from tests.support.scored_trajectories import CURATION, scored, sequence

ADMITTING = replace(CURATION, needs_group=False, admits_limits=LIMITS)


def at_limit(code: str, reward: float | None = None, **fields: Any) -> ScoredTrajectory:
    record = scored("r", reward, status="timed_out" if code == "deadline" else "failed", **fields)
    return replace(record, trajectory=replace(record.trajectory, code=code))


@pytest.mark.parametrize("code", sorted(LIMITS))
def test_a_rollout_at_a_limit_is_admitted_if_a_rule_allows_it(code: str) -> None:
    admitted = judge(at_limit(code), 0, 0, ADMITTING).sample
    refused = judge(at_limit(code), 0, 0, CURATION)

    assert admitted is not None
    assert (admitted.end, admitted.reward, admitted.length) == (code, 0.0, 1)
    assert refused.reason == code


def test_a_rollout_at_a_limit_keeps_its_reward() -> None:
    admitted = judge(at_limit("turn_limit", 0.25), 0, 0, ADMITTING).sample

    assert admitted is not None
    assert admitted.reward == 0.25


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (at_limit("program"), "failed"),
        (at_limit("turn_limit", float("nan")), "unscored"),
        (at_limit("turn_limit", 1e160), "unscored"),
        (at_limit("turn_limit", sequences=()), "no_token_ids"),
        (at_limit("deadline", sequences=(sequence([1, 2], [1, 1]),)), "malformed"),
    ],
)
def test_admitting_limits_admits_nothing_else(record: ScoredTrajectory, reason: str) -> None:
    assert judge(record, 0, 0, ADMITTING).reason == reason


def test_a_finished_rollout_did_not_end_at_a_limit() -> None:
    finished = judge(scored("r"), 0, 0, ADMITTING).sample
    boasting = scored("r")
    boasting = replace(boasting, trajectory=replace(boasting.trajectory, code="turn_limit"))

    assert finished is not None
    assert finished.end == "finished"
    assert judge(boasting, 0, 0, CURATION).sample is not None


@pytest.mark.parametrize(("calls", "reason"), [(0, "no_tokens"), (3, "no_token_ids")])
def test_answers_without_token_ids_are_distinguished_from_no_answers(
    calls: int, reason: str
) -> None:
    record = scored("r", sequences=(sequence([1], [0]),))
    record = replace(record, trajectory=replace(record.trajectory, model_calls=calls))

    assert judge(record, 0, 0, CURATION).reason == reason


def test_a_joining_policy_does_not_wait_for_rollouts_without_it() -> None:
    joining = replace(CURATION, policy_id="verifier", joins=True, needs_group=False)
    asked = scored("a", group="g", group_size=2, policies=("verifier",))
    unasked = scored("b", group="g", group_size=2)
    failed = scored("c", group="h", group_size=1, status="failed")

    assert judge(unasked, 0, 0, joining).reason == UNASKED
    assert judge(unasked, 0, 0, replace(joining, joins=False)).reason == "other_policy"
    assert judge(failed, 0, 0, joining).reason == "failed"
    buffer = Buffer(joining)
    for number, each in enumerate((asked, unasked, failed)):
        buffer.offer(each, 0, number)
    taken = buffer.take(1, 0)
    assert taken is not None
    assert [sample.scored.trajectory.rollout_id for sample in taken] == ["a"]
    assert {reason: tally.count for reason, tally in buffer.drops().items()} == {
        "failed": 1, UNASKED: 1,
    }  # fmt: skip


def test_a_shaping_rule_on_limits_admits_rollouts_at_limits() -> None:
    plain, shaped = LearnerConfig(), LearnerConfig(shaping=("no_submit",))

    assert plain.curation("run", "policy").admits_limits == frozenset()
    assert shaped.curation("run", "policy").admits_limits == LIMITS
