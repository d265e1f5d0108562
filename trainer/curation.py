"""Which scored trajectories are trained on, and when.

The law: whatever is offered is, at any moment, exactly one of held, used or dropped, and what is
dropped is counted with its length under one reason. A group leaves whole, in one `take`: its
members are consumed together or not at all, so a restart never meets half a group that it cannot
complete. Nothing is evicted: a full buffer says so, and its caller pauses the partitions.

Order is earliest deadline first (AstraFlow): the group with the lowest token version is the next
to go stale, so it is trained on first. Time is the policy version; no clock is read here.
"""

import heapq
import math
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from schemas.errors import Refused
from schemas.messages import Consumed, Sampling, ScoredTrajectory, TrajectoryRef
from schemas.messages import Sequence as TokenSequence
from schemas.packed import ids_of, logprobs_of, mask_of
from trainer.plugins import plugin

Place = tuple[int, int]
"""Partition and offset."""

OUTSIDE = frozenset({"other_run", "other_purpose", "other_policy", "duplicate", "late"})
"""Reasons of records that are no member of a group of ours, so nobody waits for them."""

RECENT = 8192
"""How many ids of what was used or dropped are remembered against records written twice."""

FORCE_AFTER = 256
"""After so many filtered groups in a row one is let through, lest the trainer wait for ever."""


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

    @property
    def group(self) -> str:
        return group_of(self.scored)

    def ref(self, topic: str) -> TrajectoryRef:
        trajectory = self.scored.trajectory
        return TrajectoryRef(
            topic, self.partition, self.offset, trajectory.rollout_id, trajectory.attempt
        )


@dataclass(frozen=True, slots=True)
class Dropped:
    """One record that will not be trained on; its place in the log is free to be consumed."""

    partition: int
    offset: int
    rollout_id: str
    attempt: int
    reason: str
    length: int


@dataclass(frozen=True, slots=True)
class Tally:
    """How many records were dropped for one reason, and how many sampled tokens they held."""

    count: int = 0
    length: int = 0


Filter = Callable[[Sequence[Sample]], bool]
"""Whether a complete group is worth training on. It sees rewards as scored, before any shaping."""


def keep_all(samples: Sequence[Sample]) -> bool:
    return True


def zero_variance(samples: Sequence[Sample]) -> bool:
    """Keep if max R − min R > 1e-8: equal rewards teach nothing. Source: DAPO §3.2."""
    rewards = [sample.reward for sample in samples]
    return max(rewards) - min(rewards) > 1e-8


FILTERS: Mapping[str, Filter] = {"none": keep_all, "zero_variance": zero_variance}


@dataclass(frozen=True, slots=True)
class Curation:
    """What a buffer admits and how it decides."""

    run_id: str
    policy_id: str
    max_staleness: int = 2
    missing: str = "drop"
    """A group with failed members: `drop`, or `train_partial` on the others."""
    on_stale: str = "drop"
    filters: tuple[str, ...] = ("none",)
    needs_group: bool = True
    """Whether the advantage rule compares within a group, so that a group of one is useless."""
    temperature: float = 1.0
    """What the trainer divides logits by; samples drawn otherwise are refused."""
    capacity_groups: int = 64
    abandoned: tuple[tuple[int, int], ...] = ()
    """Ranges of versions, both ends included, that no checkpoint descends from."""

    def __post_init__(self) -> None:
        _one_of("missing", self.missing, ("drop", "train_partial"))
        _one_of("on_stale", self.on_stale, ("drop",))
        _at_least("max_staleness", self.max_staleness, 0)
        _at_least("capacity_groups", self.capacity_groups, 1)


@dataclass(frozen=True, slots=True)
class _Member:
    """A record of a group: fit to train on where `sample` is set, else missing for a reason."""

    scored: ScoredTrajectory
    place: Place
    length: int
    version: int | None
    reason: str = ""
    sample: Sample | None = None

    @property
    def id(self) -> str:
        trajectory = self.scored.trajectory
        return f"r:{trajectory.attempt}:{trajectory.rollout_id}"


@dataclass(slots=True)
class _Group:
    key: str
    size: int
    members: list[_Member] = field(default_factory=list)

    def samples(self) -> list[Sample]:
        return [member.sample for member in self.members if member.sample is not None]

    def deadline(self) -> int | None:
        """The lowest version that would be trained on; of failed members where all have failed."""
        fit = [sample.min_version for sample in self.samples()]
        return min(fit or [m.version for m in self.members if m.version is not None], default=None)


class Buffer:
    """Groups that wait to be complete, and complete ones in order of their deadlines."""

    def __init__(self, curation: Curation) -> None:
        self.curation = curation
        self.filters = {name: plugin("filters", name, FILTERS) for name in curation.filters}
        self.used = 0
        self._groups: dict[str, _Group] = {}
        self._ready: list[tuple[int, Place, str]] = []
        self._held: set[str] = set()
        self._recent: OrderedDict[str, None] = OrderedDict()
        self._tallies: dict[str, Tally] = {}
        self._released: list[Dropped] = []
        self._filtered_in_a_row = 0

    def offer(self, scored: ScoredTrajectory, partition: int, offset: int) -> None:
        """Take one record of `trajectories.scored` in; it is held or dropped when this returns."""
        member = judge(scored, partition, offset, self.curation)
        reason = self._already_known(member)
        if reason:
            self._drop(member, reason)
            return
        key = group_of(scored)
        group = self._groups.setdefault(key, _Group(key, group_size_of(scored)))
        group.members.append(member)
        self._held.add(member.id)
        if len(group.members) >= group.size:
            self._complete(group)

    def take(self, groups: int, v_now: int) -> tuple[Sample, ...] | None:
        """The samples of the `groups` most urgent groups in log order; None while there are fewer.

        Groups with v_now − min_version > max_staleness are dropped first, complete or not.
        """
        if groups > self.curation.capacity_groups:
            msg = (
                f"a batch of {groups} groups from a buffer of {self.curation.capacity_groups}; "
                f"raise capacity_groups to at least {groups}"
            )
            raise Refused(msg)
        self._drop_stale(v_now)
        if len(self._ready) < groups:
            return None
        samples: list[Sample] = []
        for _ in range(groups):
            samples += self._use(self._groups[heapq.heappop(self._ready)[2]])
        self.used += len(samples)
        return tuple(sorted(samples, key=lambda sample: (sample.partition, sample.offset)))

    def full(self) -> bool:
        """Whether to pause. Incomplete groups do not count: a pause would keep them incomplete."""
        return len(self._ready) >= self.curation.capacity_groups

    def held(self) -> int:
        """How many records wait here."""
        return len(self._held)

    def ready_groups(self) -> int:
        return len(self._ready)

    def drops(self) -> dict[str, Tally]:
        """Everything dropped so far, by reason."""
        return dict(self._tallies)

    def released(self) -> tuple[Dropped, ...]:
        """What was dropped since this was last asked; mark it consumed with the next checkpoint."""
        released, self._released = tuple(self._released), []
        return released

    def recent(self) -> tuple[str, ...]:
        """Ids of records and groups that are gone for good; `restore` knows them again."""
        return tuple(self._recent)

    def restore(self, recent: Iterable[str], drops: Mapping[str, Tally]) -> None:
        """Go on where a checkpoint stood; what was held then is read again from the log."""
        for key in recent:
            self._remember(key)
        self._tallies = dict(drops)

    def _already_known(self, member: _Member) -> str:
        if member.reason in OUTSIDE:
            return member.reason
        if member.id in self._held or member.id in self._recent:
            return "duplicate"
        return "late" if f"g:{group_of(member.scored)}" in self._recent else ""

    def _complete(self, group: _Group) -> None:
        reason = self._unfit(group)
        if reason:
            self._drop_group(group, reason)
            return
        places = min(member.place for member in group.members)
        heapq.heappush(self._ready, (group.deadline() or 0, places, group.key))

    def _unfit(self, group: _Group) -> str:
        """Why a group with all its members is not trained on; empty if it is."""
        samples = group.samples()
        if len(samples) < len(group.members) and self.curation.missing == "drop":
            return "incomplete"
        if not samples or (len(samples) == 1 and self.curation.needs_group):
            return "singleton"
        return self._filtered(samples)

    def _filtered(self, samples: list[Sample]) -> str:
        rejected = next((name for name, keep in self.filters.items() if not keep(samples)), "")
        if not rejected or self._filtered_in_a_row >= FORCE_AFTER:
            self._filtered_in_a_row = 0
            return ""
        self._filtered_in_a_row += 1
        return rejected

    def _drop_stale(self, v_now: int) -> None:
        oldest = v_now - self.curation.max_staleness
        stale = [g for g in self._groups.values() if _older(g.deadline(), oldest)]
        for group in stale:
            self._drop_group(group, "stale")
        if stale:
            self._ready = [entry for entry in self._ready if entry[2] in self._groups]
            heapq.heapify(self._ready)

    def _use(self, group: _Group) -> list[Sample]:
        samples = group.samples()
        self._forget(group)
        for member in group.members:
            if member.sample is None:
                self._drop(member, member.reason)
        return samples

    def _drop_group(self, group: _Group, reason: str) -> None:
        self._forget(group)
        for member in group.members:
            self._drop(member, member.reason or reason)

    def _forget(self, group: _Group) -> None:
        del self._groups[group.key]
        self._remember(f"g:{group.key}")
        for member in group.members:
            self._held.remove(member.id)
            self._remember(member.id)

    def _remember(self, key: str) -> None:
        self._recent[key] = None
        if len(self._recent) > RECENT:
            self._recent.popitem(last=False)

    def _drop(self, member: _Member, reason: str) -> None:
        trajectory = member.scored.trajectory
        tally = self._tallies.get(reason, Tally())
        self._tallies[reason] = Tally(tally.count + 1, tally.length + member.length)
        self._released.append(
            Dropped(*member.place, trajectory.rollout_id, trajectory.attempt, reason, member.length)
        )


def judge(scored: ScoredTrajectory, partition: int, offset: int, curation: Curation) -> _Member:
    """Whether one record, looked at alone, can be trained on, and if not, why."""
    trajectory, place = scored.trajectory, (partition, offset)
    if trajectory.sequences is None and trajectory.claim is not None:
        msg = f"rollout {trajectory.rollout_id} still lies in its claim; read that before offering"
        raise Refused(msg)
    reason = _outside(scored, curation)
    if reason:
        return _Member(scored, place, trajectory.sampled_tokens, None, reason)
    index, versions = 255, set[int]()
    sequences = trajectory.sequences or ()
    if curation.policy_id in trajectory.policies:
        index = trajectory.policies.index(curation.policy_id)
        versions = versions_of(sequences, index)
    length = sampled_tokens(sequences, index)
    version = min(versions, default=None)
    reason = _missing(scored, index, versions, curation)
    if reason or version is None:
        return _Member(scored, place, length, version, reason or "no_tokens")
    total = scored.total or 0.0
    sample = Sample(scored, partition, offset, index, total, version, length)
    return _Member(scored, place, length, version, sample=sample)


def versions_of(sequences: Iterable[TokenSequence], policy_index: int) -> set[int]:
    """The weights that sampled the policy's tokens."""
    found: set[int] = set()
    for sequence in sequences:
        found.update(ids_of(sequence.versions)[mine(sequence, policy_index)].tolist())
    return found


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
    if curation.policy_id not in (request.policy_id, *scored.trajectory.policies):
        return "other_policy"
    return ""


def _missing(
    scored: ScoredTrajectory, policy_index: int, versions: set[int], curation: Curation
) -> str:
    """Why a member of a group of ours cannot be trained on; empty if it can."""
    trajectory = scored.trajectory
    if trajectory.status != "finished":
        return trajectory.status
    if scored.total is None or not math.isfinite(scored.total):
        return "unscored"
    if trajectory.request and not _followed(trajectory.request.sampling, curation.temperature):
        return "sampling_not_followed"
    if any(_malformed(sequence, policy_index) for sequence in trajectory.sequences or ()):
        return "malformed"
    if any(first <= v <= last for v in versions for first, last in curation.abandoned):
        return "abandoned"
    return ""


def _followed(sampling: Sampling, temperature: float) -> bool:
    """Whether the trainer computes the distribution that was sampled from.

    top-p and top-k renormalise over a set of tokens that was not recorded, so it cannot.
    """
    return (sampling.top_p, sampling.top_k, sampling.temperature) == (1.0, 0, temperature)


def _malformed(sequence: TokenSequence, policy_index: int) -> bool:
    """Sampled tokens without a version, with an impossible log-probability, or without a prompt."""
    sampled = mine(sequence, policy_index)
    logprobs = logprobs_of(sequence.behaviour_logprobs)[sampled]
    possible = (logprobs <= 1e-3) & (logprobs > -math.inf)
    versioned = ids_of(sequence.versions)[sampled] >= 0
    return not (possible.all() and versioned.all()) or bool(sampled[:1].any())


def _older(version: int | None, oldest: int) -> bool:
    return version is not None and version < oldest


def _one_of(key: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        msg = f"{key} is {value!r}; use one of {', '.join(known)}"
        raise Refused(msg)


def _at_least(key: str, value: int, least: int) -> None:
    if value < least:
        msg = f"{key} is {value}; it must be at least {least}"
        raise Refused(msg)


@dataclass(slots=True)
class _Partition:
    start: int
    """No offset below this is wanted any more, whatever is delivered."""
    outstanding: set[int] = field(default_factory=set)
    consumed: set[int] = field(default_factory=set)

    def next_offset(self) -> int:
        return min(self.outstanding, default=self.start)


class Consumption:
    """How far a topic has been consumed, per partition, out of log order.

    Offsets have holes (transaction markers, compaction), so only delivered ones are waited for:
    the next offset is the lowest that was delivered and not consumed, or, where there is none,
    the one after the last delivered.
    """

    def __init__(self, topic: str, restored: Iterable[Consumed] = (), topic_id: str = "") -> None:
        self.topic = topic
        self.topic_id = topic_id
        self._partitions = {
            mark.partition: _Partition(mark.next_offset, consumed=set(mark.above))
            for mark in restored
            if mark.topic == topic
        }

    def delivered(self, partition: int, offset: int) -> bool:
        """Note a record that was read; False if it is already consumed and must be skipped."""
        at = self._partitions.setdefault(partition, _Partition(offset))
        if offset < at.start and offset not in at.outstanding:
            return False
        at.start = max(at.start, offset + 1)
        if offset in at.consumed:
            return False
        at.outstanding.add(offset)
        return True

    def consumed(self, partition: int, offset: int) -> None:
        """Note a record that was used or dropped; it must have been delivered."""
        at = self._partitions[partition]
        at.outstanding.remove(offset)
        at.consumed.add(offset)

    def marks(self) -> tuple[Consumed, ...]:
        """Where to go on, for the checkpoint: seek to `next_offset`, skip what is above."""
        for at in self._partitions.values():
            at.consumed = {offset for offset in at.consumed if offset > at.next_offset()}
        return tuple(
            Consumed(
                self.topic, partition, at.next_offset(), tuple(sorted(at.consumed)), self.topic_id
            )
            for partition, at in sorted(self._partitions.items())
        )
