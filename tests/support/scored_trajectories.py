"""Scored trajectories made by hand."""

from collections.abc import Sequence as Many
from dataclasses import replace
from typing import Any

import numpy as np

from rollcall.schemas.messages import (
    RolloutRequest,
    Sampling,
    ScoredTrajectory,
    Sequence,
    StepTaken,
    Task,
    Trajectory,
)
from rollcall.schemas.packed import pack_ids, pack_logprobs
from rollcall.trainer.batch.rows import Batch, lay_out
from rollcall.trainer.batch.weighing import weigh
from rollcall.trainer.config.curation import Curation
from rollcall.trainer.config.learner_config import LearnerConfig
from rollcall.trainer.curation.judge import judge
from rollcall.trainer.rules.samples import Sample

CURATION = Curation("run", "policy")
VOCABULARY = 12


def sequence(
    ids: Many[int],
    mask: Many[int],
    logprobs: Many[float] | None = None,
    versions: Many[int] | None = None,
    policies: Many[int] | None = None,
) -> Sequence:
    """A sequence whose sampled tokens are of version 0 and policy 0 unless said otherwise."""
    return Sequence(
        token_ids=pack_ids(ids),
        loss_mask=bytes(mask),
        behaviour_logprobs=pack_logprobs(logprobs or [-1.0 * m for m in mask]),
        versions=pack_ids(versions or [m - 1 for m in mask]),
        policy_index=bytes(policies or [0 if m else 255 for m in mask]),
        messages=(),
        provenance="missing",
    )


def scored(
    rollout_id: str,
    reward: float | None = 1.0,
    *,
    version: int = 0,
    group: str = "",
    group_size: int = 1,
    sequences: tuple[Sequence, ...] | None = None,
    status: str = "finished",
    run_id: str = "run",
    purpose: str = "train",
    sampling: Sampling | None = None,
    policies: tuple[str, ...] = ("policy",),
) -> ScoredTrajectory:
    request = RolloutRequest(
        rollout_id,
        Task(),
        run_id=run_id,
        purpose=purpose,
        group_id=group,
        group_size=group_size,
        sampling=sampling or Sampling(),
    )
    if sequences is None:
        sequences = (sequence([1, 2], [0, 1], versions=[-1, version]),)
    trajectory = Trajectory(
        rollout_id=rollout_id,
        attempt=0,
        status=status,
        request=request,
        policies=policies,
        sequences=sequences,
        steps=(),
        model_calls=1,
        sampled_tokens=1,
        failures=0,
        journal_partition=0,
        first_offset=0,
        last_offset=0,
        started_ms=0,
        ended_ms=0,
    )
    return ScoredTrajectory(
        scoring_id="scoring",
        trajectory=trajectory,
        rewards=(),
        total=reward,
        source_topic="trajectories",
        source_partition=0,
        source_offset=0,
    )


def sample(record: ScoredTrajectory, offset: int = 0) -> Sample:
    made = judge(record, 0, offset, CURATION).sample
    assert made is not None
    return made


def ended(rollout_id: str = "r", status: str = "finished", **fields: Any) -> Trajectory:
    steps = (
        StepTaken(0, "main", None, "hall", 0.25, False, False),
        StepTaken(1, "main", "on", "attic", 1.0, True, False),
    )
    asked = RolloutRequest(rollout_id, Task(), group_id="g")
    trajectory = Trajectory(rollout_id, 1, status, asked, (), (), steps, 0, 0, 0, 0, 3, 9, 100, 200)
    return replace(trajectory, **fields)


def some_samples(seed: int, count: int = 12, temperature: float = 1.0) -> list[Sample]:
    """Rollouts of random tokens and lengths, two turns each."""
    random = np.random.default_rng(seed)
    made = []
    for number in range(count):
        first, second = random.integers(1, 5, size=2)
        mask = [0, 0] + [1] * first + [0] + [1] * second
        ids = random.integers(0, VOCABULARY, size=len(mask))
        logprobs = [-2.5 * m for m in mask]
        record = scored(
            f"{seed}-{number}", float(number % 3), sequences=(sequence(ids, mask, logprobs),)
        )
        made.append(sample(record, number))
    return made


def make_batch(samples: Many[Sample], config: LearnerConfig) -> Batch:
    """The samples laid out and weighed, without a model's scores."""
    batch, rewards = lay_out(samples, config, 10**6)
    return weigh(batch, rewards, config, 0, config.entropy)
