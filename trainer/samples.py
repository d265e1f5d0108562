"""The check of a single scored trajectory: can it be trained on, and if not, for which reason.

A record of another run, purpose or policy is ignored, and no group waits for it; every other record
is a member of a group, with a sample or with one reason for its absence. This is the only check
between a topic that any process may write and the computation: a sample that has passed has tokens
of the model's vocabulary, in sequences that it can read, with finite numbers.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rollcall.schemas.errors import Refused
from rollcall.schemas.messages import Sampling, ScoredTrajectory, Trajectory, TrajectoryRef
from rollcall.schemas.messages import Sequence as TokenSequence
from rollcall.schemas.packed import ids_of, logprobs_of, mask_of
from rollcall.schemas.rules import Choice
from rollcall.trainer.distillation.teacher_scores import teacher_logprobs
from rollcall.trainer.foreign import RECORDED, Recorded, Share
from rollcall.trainer.staleness import ON_STALE

ScoredPlace = tuple[int, int]
"""Partition and offset."""

REWARD_LIMIT = 1e9
"""The largest absolute total: its square must stay finite in float32."""

LOGPROB_LEAST = -1000.0
"""The lowest valid log-probability of a sampled token, in nats."""

OUTSIDE = frozenset({"other_run", "other_purpose", "other_policy"})
"""Reasons of records that are not a member of a group of ours; no group waits for them."""

UNASKED = "unasked"
"""The reason of a rollout that another policy requested and that did not call ours."""

UNTOLD = "untold"
"""The reason of a shared rollout whose text cannot be tokenised for our policy."""

LIMITS = frozenset({"turn_limit", "token_limit", "too_long", "deadline", "agent_deadline"})
"""Codes of rollouts that ended at a limit: their samples are complete, but may be unscored."""

BESIDE_LIMIT = "beside_limit"
"""The reason of a usable rollout whose group is incomplete because a member hit a limit."""

RENAMED = {
    "unknown_token": "vocabulary",
    "beyond_context": "too_long",
    "reward_out_of_range": "unscored",
}
"""Reason names of the first releases in checkpoints and steps, and the current names."""


@dataclass(frozen=True, slots=True)
class Sample:
    """A scored trajectory that can be trained on, for one policy."""

    scored: ScoredTrajectory
    partition: int
    offset: int
    policy_index: int
    """The index of our policy among the trajectory's policies."""
    reward: float
    min_version: int
    """The lowest version of the tokens that our policy sampled."""
    length: int
    """The number of tokens that our policy sampled, over all sequences."""
    uses: int = 0
    """The number of earlier uses; above 0 it is consumed, and admission has counted it."""
    compared_in: str = ""
    """The group that it is compared in, if that is not its own."""
    lent: str = ""
    """`recorded` or `shared` if another run requested it; its versions then belong to that run."""

    @property
    def fresh(self) -> bool:
        """True if this use consumes the record."""
        return not self.uses and self.lent != RECORDED

    @property
    def group(self) -> str:
        return self.compared_in or group_of(self.scored)

    @property
    def task_id(self) -> str:
        """The task id of its request; empty if there is none."""
        request = self.scored.trajectory.request
        return request.task.task_id if request else ""

    @property
    def end(self) -> str:
        """The end of the rollout: `finished`, or the limit that it ended at, one of `LIMITS`."""
        return _limit(self.scored.trajectory) or "finished"

    def ref(self, topic: str) -> TrajectoryRef:
        trajectory = self.scored.trajectory
        return TrajectoryRef(
            topic, self.partition, self.offset, trajectory.rollout_id, trajectory.attempt
        )


@dataclass(frozen=True, slots=True)
class Curation:
    """The settings by which a buffer admits samples."""

    run_id: str
    policy_id: str
    max_staleness: int = 2
    missing: str = "drop"
    """The treatment of a group with failed members: `drop`, or `train_partial` on the others."""
    continues: str = ""
    """The reason of cancelled drawn rollouts that are continued later; empty: none."""
    retention: int = 0
    """The most continuations of a rollout; 0: no bound."""
    redundancy: int = 0
    """The number of members that may be missing when a drawn group counts as complete."""
    order: str = "edf"
    """The order of groups: `edf` the one that is stale next, `fifo` the one that came first."""
    on_stale: str = "drop"
    """The treatment of stale groups: `drop`; or `wait` with a step that would make a running group
    stale; or `weight` their advantages down."""
    stale_wait_s: float = 60.0
    """The longest time that a step is held back, in seconds of the log."""
    stale_wait_steps: int = 0
    """The number of batches that may accumulate meanwhile; 0: any number."""
    filters: tuple[str | Choice, ...] = ("none",)
    batch: str | Choice = "groups"
    """The rule that decides when a batch is complete."""
    needs_group: bool = True
    """True if the advantage rule compares within a group, so that a group of one is useless."""
    temperature: float = 1.0
    """The trainer's temperature; samples of another temperature are refused."""
    capacity_groups: int = 64
    vocabulary: int = 0
    """The vocabulary size of the model; 0: not known, token ids are not checked."""
    context: int = 0
    """The number of positions of the model; 0: not known, lengths are not checked."""
    abandoned: tuple[tuple[int, int], ...] = ()
    """Ranges of abandoned versions, both ends included."""
    admits_limits: frozenset[str] = frozenset()
    """The limits at which a rollout may end and still be trained on, if a shaping rule values it;
    before shaping its reward is the score, or 0 without one."""

    teacher: str = ""
    """The prefix of the scorer that must have scored every token of our policy; "": none."""

    recorded: Recorded | None = None
    """The settings of recorded groups of an earlier run, if used."""
    share: Share | None = None
    """The settings of groups shared by other runs, if used."""
    joins: bool = False
    """True if another policy requests the rollouts: those without a token of ours still count as
    members of their groups."""

    def __post_init__(self) -> None:
        _one_of("missing", self.missing, ("drop", "train_partial"))
        _one_of("order", self.order, ("edf", "fifo"))
        _one_of("on_stale", self.on_stale, ON_STALE)
        _at_least("max_staleness", self.max_staleness, 0)
        _at_least("capacity_groups", self.capacity_groups, 1)


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


def versions_of(sequences: Iterable[TokenSequence], policy_index: int) -> set[int]:
    """Return the versions that sampled the policy's tokens."""
    versions: set[int] = set()
    for sequence in sequences:
        versions.update(ids_of(sequence.versions)[mine(sequence, policy_index)].tolist())
    return versions


def sampled_tokens(sequences: Iterable[TokenSequence], policy_index: int) -> int:
    return sum(int(mine(sequence, policy_index).sum()) for sequence in sequences)


def mine(sequence: TokenSequence, policy_index: int) -> NDArray[np.bool_]:
    """Return a mask of the tokens that this policy sampled, bool [T]."""
    ours = mask_of(sequence.policy_index) == policy_index
    both: NDArray[np.bool_] = ours & (mask_of(sequence.loss_mask) == 1)
    return both


def group_of(scored: ScoredTrajectory) -> str:
    """Return the group id; a rollout without one is a group of its own."""
    request = scored.trajectory.request
    return (request.group_id if request else "") or f"alone:{scored.trajectory.rollout_id}"


def group_size_of(scored: ScoredTrajectory) -> int:
    request = scored.trajectory.request
    return request.group_size if request and request.group_id else 1


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
    at_limit = _limit(trajectory) in curation.admits_limits
    if trajectory.status != "finished" and not at_limit:
        return _limit(trajectory) or trajectory.status
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


def _limit(trajectory: Trajectory) -> str:
    """Return the limit that a rollout ended at, one of `LIMITS`; empty for none."""
    ended = trajectory.status != "finished" and trajectory.code in LIMITS
    return trajectory.code if ended else ""


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


def _one_of(key: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        msg = f"{key} is {value!r}; use one of {', '.join(known)}"
        raise Refused(msg)


def _at_least(key: str, value: int, least: int) -> None:
    if value < least:
        msg = f"{key} is {value}; it must be at least {least}"
        raise Refused(msg)
