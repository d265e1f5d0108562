"""Whether one scored trajectory, looked at alone, can be trained on, and if not, why.

The law: a record of another run, purpose or policy is no business of ours and nobody waits for it;
every other record is a member of a group, fit to train on or missing for one stated reason. This is
the one door between a topic that anybody may write and the arithmetic: a sample that has passed
names tokens that the model has, in sequences that it can read, with finite numbers.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from schemas.errors import Refused
from schemas.messages import Sampling, ScoredTrajectory, Trajectory, TrajectoryRef
from schemas.messages import Sequence as TokenSequence
from schemas.packed import ids_of, logprobs_of, mask_of
from schemas.rules import Choice
from trainer.distillation.teacher_scores import teacher_logprobs
from trainer.foreign import RECORDED, Recorded, Share
from trainer.staleness import ON_STALE

ScoredPlace = tuple[int, int]
"""Partition and offset."""

REWARD_LIMIT = 1e9
"""A total beyond this, either way, is no score: its square must stay finite in float32."""

LOGPROB_LEAST = -1000.0
"""In nats; nothing is ever sampled that is less likely."""

OUTSIDE = frozenset({"other_run", "other_purpose", "other_policy"})
"""Reasons of records that are no member of a group of ours, so nobody waits for them."""

UNASKED = "unasked"
"""Reason of a rollout that another policy asked for and that had no question for ours."""

UNTOLD = "untold"
"""Reason of a shared rollout whose text cannot be read as tokens of ours."""

LIMITS = frozenset({"turn_limit", "token_limit", "too_long", "deadline", "agent_deadline"})
"""Codes of rollouts that ended at a limit: what they sampled is whole, only nobody scored it."""

BESIDE_LIMIT = "beside_limit"
"""Reason of a rollout that could be trained on, in a group that one at a limit has spoilt."""

RENAMED = {
    "unknown_token": "vocabulary",
    "beyond_context": "too_long",
    "reward_out_of_range": "unscored",
}
"""Reasons as the first releases wrote them into checkpoints and steps, and their names now."""


@dataclass(frozen=True, slots=True)
class Sample:
    """A scored trajectory that can be trained on, seen by one policy."""

    scored: ScoredTrajectory
    partition: int
    offset: int
    policy_index: int
    """Which of the trajectory's policies is ours."""
    reward: float
    min_version: int
    """Of the tokens that our policy sampled."""
    length: int
    """Tokens that our policy sampled, over all sequences."""
    uses: int = 0
    """How often it was trained on before: what was is consumed, and counted by admission."""
    compared_in: str = ""
    """The group that it is compared in, where that is not the one it was drawn for."""
    lent: str = ""
    """How it came here, where another run asked for it: `recorded` or `shared`; its versions are
    then no numbers of ours."""

    @property
    def fresh(self) -> bool:
        """Whether this use is what consumes it."""
        return not self.uses and self.lent != RECORDED

    @property
    def group(self) -> str:
        return self.compared_in or group_of(self.scored)

    @property
    def task_id(self) -> str:
        """As its request has it; empty where there is none."""
        request = self.scored.trajectory.request
        return request.task.task_id if request else ""

    @property
    def end(self) -> str:
        """Why the rollout ended: `finished`, or the limit that it ended at, one of `LIMITS`."""
        return _limit(self.scored.trajectory) or "finished"

    def ref(self, topic: str) -> TrajectoryRef:
        trajectory = self.scored.trajectory
        return TrajectoryRef(
            topic, self.partition, self.offset, trajectory.rollout_id, trajectory.attempt
        )


@dataclass(frozen=True, slots=True)
class Curation:
    """What a buffer admits and how it decides."""

    run_id: str
    policy_id: str
    max_staleness: int = 2
    missing: str = "drop"
    """A group with failed members: `drop`, or `train_partial` on the others."""
    continues: str = ""
    """Drawn rollouts that were cancelled for this reason are gone on with; empty: none are."""
    retention: int = 0
    """How often one may be gone on with; 0 is no bound."""
    redundancy: int = 0
    """So many of a drawn group's members may be missing: the first of the others make it whole."""
    order: str = "edf"
    """Which group goes first: `edf` the one that is stale next, `fifo` the one that came first."""
    on_stale: str = "drop"
    """Groups that are too old: `drop`; or `wait`, and take no step that would make a running one
    so; or `weight`, and let them count for less."""
    stale_wait_s: float = 60.0
    """How long a step may be held back, in seconds of the log."""
    stale_wait_steps: int = 0
    """So many more batches may pile up meanwhile; 0: any number."""
    filters: tuple[str | Choice, ...] = ("none",)
    batch: str | Choice = "groups"
    """What says that a batch is whole."""
    needs_group: bool = True
    """Whether the advantage rule compares within a group, so that a group of one is useless."""
    temperature: float = 1.0
    """What the trainer divides logits by; samples drawn otherwise are refused."""
    capacity_groups: int = 64
    vocabulary: int = 0
    """Tokens of the model; 0: not known, and token ids are not looked at."""
    context: int = 0
    """Positions of the model; 0: not known, and lengths are not looked at."""
    abandoned: tuple[tuple[int, int], ...] = ()
    """Ranges of versions, both ends included, that no checkpoint descends from."""
    admits_limits: frozenset[str] = frozenset()
    """Rollouts that ended at these of `LIMITS` are trained on, since a shaping rule says what they
    earn; unshaped they earn what was scored, and 0 where nothing was."""

    teacher: str = ""
    """Beginning of the name of the scorer whose scores every token of ours must have; "": none."""

    recorded: Recorded | None = None
    """Whose recorded groups a batch may hold."""
    share: Share | None = None
    """Whose groups a batch may hold as text."""
    joins: bool = False
    """Whether another policy asks for the rollouts: those without a token of ours are members of
    their groups too, and nobody waits for such tokens."""

    def __post_init__(self) -> None:
        _one_of("missing", self.missing, ("drop", "train_partial"))
        _one_of("order", self.order, ("edf", "fifo"))
        _one_of("on_stale", self.on_stale, ON_STALE)
        _at_least("max_staleness", self.max_staleness, 0)
        _at_least("capacity_groups", self.capacity_groups, 1)


@dataclass(frozen=True, slots=True)
class Member:
    """A record of a group: fit to train on where `sample` is set, else missing for a reason."""

    scored: ScoredTrajectory
    place: ScoredPlace
    length: int
    version: int | None
    reason: str = ""
    sample: Sample | None = None


def judge(scored: ScoredTrajectory, partition: int, offset: int, curation: Curation) -> Member:
    """Whether one record, looked at alone, can be trained on, and if not, why; never raises."""
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
    total = scored.total or 0.0  # at a limit there may be none
    sample = Sample(scored, partition, offset, index, total, version, length)
    return Member(scored, place, length, version, sample=sample)


def versions_of(sequences: Iterable[TokenSequence], policy_index: int) -> set[int]:
    """The weights that sampled the policy's tokens."""
    versions: set[int] = set()
    for sequence in sequences:
        versions.update(ids_of(sequence.versions)[mine(sequence, policy_index)].tolist())
    return versions


def sampled_tokens(sequences: Iterable[TokenSequence], policy_index: int) -> int:
    return sum(int(mine(sequence, policy_index).sum()) for sequence in sequences)


def mine(sequence: TokenSequence, policy_index: int) -> NDArray[np.bool_]:
    """bool [T]: the tokens that this policy sampled."""
    ours = mask_of(sequence.policy_index) == policy_index
    both: NDArray[np.bool_] = ours & (mask_of(sequence.loss_mask) == 1)
    return both


def group_of(scored: ScoredTrajectory) -> str:
    """The group's id; a rollout without one is a group of its own."""
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
    """Why a member of a group of ours cannot be trained on; empty if it can."""
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
    """Whether a token of ours has no score of a teacher, or none that can be one."""
    ours = [mine(each, policy_index) for each in scored.trajectory.sequences or ()]
    return teacher_logprobs(scored, ours, teacher) is None


def _limit(trajectory: Trajectory) -> str:
    """The limit that a rollout ended at, one of `LIMITS`; empty for none."""
    ended = trajectory.status != "finished" and trajectory.code in LIMITS
    return trajectory.code if ended else ""


def _possible(total: float | None) -> bool:
    """Whether a total can be learned from: it is there, finite and within `REWARD_LIMIT`."""
    return total is not None and math.isfinite(total) and abs(total) <= REWARD_LIMIT


def _tokenless(trajectory: Trajectory) -> str:
    """Why no token of ours is there: nobody asked for one, or what answered gave none by id."""
    return "no_token_ids" if trajectory.model_calls else "no_tokens"


def _followed(sampling: Sampling, temperature: float) -> bool:
    """Whether the trainer computes the distribution that was sampled from.

    top-p and top-k renormalise over a set of tokens that was not recorded, so it cannot.
    """
    return (sampling.top_p, sampling.top_k, sampling.temperature) == (1.0, 0, temperature)


def _malformed(sequence: TokenSequence, policy_index: int) -> bool:
    """Sampled tokens without a version, with an impossible log-probability, or without a prompt."""
    sampled = mine(sequence, policy_index)
    logprobs = logprobs_of(sequence.behaviour_logprobs)[sampled]
    possible = (logprobs <= 1e-3) & (logprobs >= LOGPROB_LEAST)
    versioned = ids_of(sequence.versions)[sampled] >= 0
    return not (possible.all() and versioned.all()) or bool(sampled[:1].any())


def _foreign(sequence: TokenSequence, vocabulary: int) -> bool:
    """Whether it names a token, read or sampled, that the model does not have."""
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
