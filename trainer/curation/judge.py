"""The check of a single scored trajectory: can it be trained on, and if not, for which reason.

A record of another run, purpose or policy is ignored, and no group waits for it; every other record
is a member of a group, with a sample or with one reason for its absence. This is the only check
between a topic that any process may write and the computation: a sample that has passed has tokens
of the model's vocabulary, in sequences that it can read, with finite numbers.
"""

import math
from dataclasses import dataclass

from rollcall.schemas.messages import Sampling, ScoredTrajectory, Trajectory
from rollcall.schemas.messages import Sequence as TokenSequence
from rollcall.schemas.packed import ids_of, logprobs_of
from rollcall.trainer.config.curation import Curation
from rollcall.trainer.rules.samples import (
    Sample,
    ScoredPlace,
    limit_of,
    mine,
    sampled_tokens,
    versions_of,
)
from rollcall.trainer.rules.teacher_scores import teacher_logprobs

REWARD_LIMIT = 1e9
"""The largest absolute total: its square must stay finite in float32."""

LOGPROB_LEAST = -1000.0
"""The lowest valid log-probability of a sampled token, in nats."""

OUTSIDE = frozenset({"other_run", "other_purpose", "other_policy"})
"""Reasons of records that are not a member of a group of ours; no group waits for them."""

UNASKED = "unasked"
"""The reason of a rollout that another policy requested and that did not call ours."""

NOT_ENCODABLE = "untold"
"""The reason of a shared rollout whose text cannot be tokenised for our policy."""


BESIDE_LIMIT = "beside_limit"
"""The reason of a usable rollout whose group is incomplete because a member hit a limit."""


@dataclass(frozen=True, slots=True)
class Member:
    """A member of a group: usable if `sample` is set, else missing for `reason`."""

    scored: ScoredTrajectory
    place: ScoredPlace
    length: int
    version: int | None
    reason: str = ""
    sample: Sample | None = None


def judge(scored: ScoredTrajectory, partition: int, offset: int, curation: Curation) -> Member:
    """Return a record as a member, with a sample or the reason for its absence; never raises."""
    trajectory, place = scored.trajectory, (partition, offset)
    reason = _outside(scored, curation)
    if reason:
        return Member(scored, place, trajectory.sampled_tokens, None, reason)
    index, versions = 255, set[int]()
    sequences = trajectory.sequences or ()
    if curation.policy_id in trajectory.policies:
        index = trajectory.policies.index(curation.policy_id)
        versions = versions_of(sequences, index)
    length = sampled_tokens(sequences, index)
    version = min(versions, default=None)
    reason = _missing(scored, index, versions, curation)
    if reason or version is None:
        without = UNASKED if curation.joins and index == 255 else _tokenless(trajectory)
        return Member(scored, place, length, version, reason or without)
    total = scored.total or 0.0  # a rollout at a limit may be unscored
    sample = Sample(scored, partition, offset, index, total, version, length)
    return Member(scored, place, length, version, sample=sample)


def _outside(scored: ScoredTrajectory, curation: Curation) -> str:
    request = scored.trajectory.request
    if request is None or request.run_id != curation.run_id:
        return "other_run"
    if request.purpose != "train":
        return "other_purpose"
    asked = (request.policy_id, *scored.trajectory.policies)
    if curation.policy_id not in asked and not curation.joins:
        return "other_policy"
    return ""


def _missing(
    scored: ScoredTrajectory, policy_index: int, versions: set[int], curation: Curation
) -> str:
    """Return why a member of our group cannot be trained on; empty if it can."""
    trajectory = scored.trajectory
    at_limit = limit_of(trajectory) in curation.admits_limits
    if trajectory.status != "finished" and not at_limit:
        return limit_of(trajectory) or trajectory.status
    if trajectory.sequences is None and trajectory.claim is not None:
        return "claim_not_read"
    if not (_possible(scored.total) or (at_limit and scored.total is None)):
        return "unscored"
    ours = [each for each in trajectory.sequences or () if mine(each, policy_index).any()]
    requested = trajectory.request.sampling if trajectory.request else Sampling()
    used = [sampling for each in ours for sampling in each.samplings or (requested,)]
    if not all(_followed(sampling, curation.temperature) for sampling in used):
        return "sampling_not_followed"
    if any(_malformed(sequence, policy_index) for sequence in ours):
        return "malformed"
    if any(_foreign(sequence, curation.vocabulary) for sequence in ours):
        return "vocabulary"
    if any(0 < curation.context < len(sequence.loss_mask) for sequence in ours):
        return "too_long"
    if any(first <= v <= last for v in versions for first, last in curation.abandoned):
        return "abandoned"
    if curation.teacher and _untaught(scored, policy_index, curation.teacher):
        return "untaught"
    return ""


def _untaught(scored: ScoredTrajectory, policy_index: int, teacher: str) -> bool:
    """Return True if a token of ours has no valid score of the teacher."""
    ours = [mine(each, policy_index) for each in scored.trajectory.sequences or ()]
    return teacher_logprobs(scored, ours, teacher) is None


def _possible(total: float | None) -> bool:
    """Return True if a total is present, finite and within `REWARD_LIMIT`."""
    return total is not None and math.isfinite(total) and abs(total) <= REWARD_LIMIT


def _tokenless(trajectory: Trajectory) -> str:
    """Return why there is no token of ours: no model call, or answers without token ids."""
    return "no_token_ids" if trajectory.model_calls else "no_tokens"


def _followed(sampling: Sampling, temperature: float) -> bool:
    """Return True if the trainer can compute the distribution that was sampled from.

    It cannot for top-p and top-k, which renormalise over a set of tokens that is not recorded.
    """
    return (sampling.top_p, sampling.top_k, sampling.temperature) == (1.0, 0, temperature)


def _malformed(sequence: TokenSequence, policy_index: int) -> bool:
    """Return True if a sampled token has no version, no valid log-probability or no prompt."""
    sampled = mine(sequence, policy_index)
    logprobs = logprobs_of(sequence.behaviour_logprobs)[sampled]
    possible = (logprobs <= 1e-3) & (logprobs >= LOGPROB_LEAST)
    versioned = ids_of(sequence.versions)[sampled] >= 0
    return not (possible.all() and versioned.all()) or bool(sampled[:1].any())


def _foreign(sequence: TokenSequence, vocabulary: int) -> bool:
    """Return True if it has a token id, read or sampled, outside the vocabulary."""
    ids = ids_of(sequence.token_ids)
    return vocabulary > 0 and not 0 <= int(ids.min()) <= int(ids.max()) < vocabulary
