"""Which scored trajectories are trained on, and when.

The law: whatever is offered is, at any moment, exactly one of held, used or dropped, and what is
dropped is counted with its length under one reason. A group leaves whole, in one `take`: its
members are consumed together or not at all, so a restart never meets half a group that it cannot
complete. Nothing is evicted: a full buffer says so, and its caller pauses the partitions.

Order is earliest deadline first (AstraFlow): the group with the lowest token version is the next
to go stale, so it is trained on first. Time is the policy version; no clock is read here.
"""

import heapq
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from schemas.errors import Refused, TopicRecreated
from schemas.messages import Consumed, ScoredTrajectory
from trainer.accounts import Accounts
from trainer.plugins import plugin
from trainer.samples import (
    OUTSIDE,
    RENAMED,
    Curation,
    Member,
    Sample,
    ScoredPlace,
    group_of,
    group_size_of,
    judge,
)

__all__ = ["Buffer", "Consumption", "Curation", "Dropped", "Sample", "Tally"]

FORCE_AFTER = 256
"""After so many filtered groups in a row one is let through, lest the trainer wait for ever."""


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


@dataclass(slots=True)
class _Group:
    key: str
    size: int
    needed: int
    """So many members that can be trained on make it whole, before all of them have come."""
    complete: bool = False
    members: list[Member] = field(default_factory=list)

    def samples(self) -> list[Sample]:
        return [member.sample for member in self.members if member.sample is not None]

    def deadline(self) -> int | None:
        """The lowest version that would be trained on; of failed members where all have failed."""
        fit = [sample.min_version for sample in self.samples()]
        return min(fit or [m.version for m in self.members if m.version is not None], default=None)


class Buffer:
    """Groups that wait to be complete, and complete ones in order of their deadlines."""

    def __init__(self, curation: Curation, accounts: Accounts | None = None) -> None:
        self.curation = curation
        self.accounts = accounts or Accounts()
        self.filters = {name: plugin("filters", name, FILTERS) for name in curation.filters}
        self.used = 0
        self._groups: dict[str, _Group] = {}
        self._ready: list[tuple[int, ScoredPlace, str]] = []
        self._tallies: dict[str, Tally] = {}
        self._released: list[Dropped] = []
        self._losers: list[str] = []
        self._filtered_in_a_row = 0

    def offer(self, scored: ScoredTrajectory, partition: int, offset: int) -> None:
        """Take one record of `trajectories.scored` in; it is held or dropped when this returns."""
        member = judge(scored, partition, offset, self.curation)
        reason = self._already_known(member)
        if reason:
            self._drop(member, reason)
            return
        key = group_of(scored)
        group = self._groups.get(key) or self._begin(key, group_size_of(scored))
        group.members.append(member)
        whole = len(group.samples()) >= group.needed
        if whole and self.curation.redundancy:
            self._losers += self.accounts.win(key)
        if whole or len(group.members) >= group.size:
            self._complete(group)

    def _begin(self, key: str, claimed: int) -> _Group:
        size = self.accounts.size(key, claimed)
        spare = self.curation.redundancy if self.accounts.drew(key) else 0
        # A group that a curator has made smaller is still one to compare in.
        least = 1 if size == self.accounts.group_size else min(size, 2)
        self._groups[key] = _Group(key, size, max(least, size - spare))
        return self._groups[key]

    def take(self, groups: int, v_now: int) -> tuple[Sample, ...] | None:
        """The samples of the `groups` most urgent groups in log order; None while there are fewer.

        Groups with v_now − min_version > max_staleness are dropped first, complete or not.
        Raises Refused.
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

    def spoil(self, samples: Sequence[Sample], reason: str) -> None:
        """Count samples that were taken and could not be used as dropped after all."""
        self.used -= len(samples)
        for sample in samples:
            place = sample.partition, sample.offset
            self._drop(Member(sample.scored, place, sample.length, sample.min_version), reason)

    def full(self) -> bool:
        """Whether to pause. Incomplete groups do not count: a pause would keep them incomplete."""
        return len(self._ready) >= self.curation.capacity_groups

    def held(self) -> int:
        """How many records wait here."""
        return self.accounts.held() + self.accounts.others()

    def ready_groups(self) -> int:
        return len(self._ready)

    def drops(self) -> dict[str, Tally]:
        """Everything dropped so far, by reason."""
        return dict(self._tallies)

    def released(self) -> tuple[Dropped, ...]:
        """What was dropped since this was last asked; mark it consumed with the next checkpoint."""
        released, self._released = tuple(self._released), []
        return released

    def losers(self) -> tuple[str, ...]:
        """Rollouts that became redundant since this was last asked; nobody needs them any more."""
        losers, self._losers = tuple(self._losers), []
        return losers

    def recent(self) -> tuple[str, ...]:
        """What is gone for good and was not drawn by admission; `restore` knows it again."""
        return self.accounts.names()

    def restore(self, recent: Iterable[str], drops: Mapping[str, Tally], used: int = 0) -> None:
        """Go on where a checkpoint stood; what was held then is read again from the log."""
        self.accounts.know(recent)
        self._tallies = under_names_of_now(drops)
        self.used = used

    def give_up(self) -> int:
        """Drop every incomplete group and all that is in the air; return how many were there.

        For where they have come, but as records that nobody can read.
        """
        waiting = [group for group in self._groups.values() if not group.complete]
        for group in waiting:
            self._drop_group(group, "incomplete")
        lost = self.accounts.lose()
        tally = self._tallies.get("lost", Tally())
        self._tallies["lost"] = Tally(tally.count + lost, tally.length)
        return lost

    def _already_known(self, member: Member) -> str:
        if member.reason in OUTSIDE:
            return member.reason
        trajectory = member.scored.trajectory
        return self.accounts.enter(
            group_of(member.scored), trajectory.rollout_id, trajectory.attempt
        )

    def _complete(self, group: _Group) -> None:
        group.complete = True
        reason = self._unfit(group)
        if reason:
            self._drop_group(group, reason)
            return
        places = min(member.place for member in group.members)
        heapq.heappush(self._ready, (group.deadline() or 0, places, group.key))

    def _unfit(self, group: _Group) -> str:
        """Why a group with all its members is not trained on; empty if it is."""
        samples = group.samples()
        if len(samples) < group.needed and self.curation.missing == "drop":
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
        deadlines = ((group, group.deadline()) for group in self._groups.values())
        stale = [group for group, at in deadlines if at is not None and at < oldest]
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
        self.accounts.leave(group.key)
        for member in group.members:
            trajectory = member.scored.trajectory
            self.accounts.end(group.key, trajectory.rollout_id, trajectory.attempt)

    def _drop(self, member: Member, reason: str) -> None:
        trajectory = member.scored.trajectory
        tally = self._tallies.get(reason, Tally())
        self._tallies[reason] = Tally(tally.count + 1, tally.length + member.length)
        self._released.append(
            Dropped(*member.place, trajectory.rollout_id, trajectory.attempt, reason, member.length)
        )


def under_names_of_now(drops: Mapping[str, Tally]) -> dict[str, Tally]:
    """What was dropped, also where a release with other names for the reasons has counted it."""
    counted: dict[str, Tally] = {}
    for reason, tally in drops.items():
        name = RENAMED.get(reason, reason)
        before = counted.get(name, Tally())
        counted[name] = Tally(before.count + tally.count, before.length + tally.length)
    return counted


@dataclass(slots=True)
class _PartitionMarks:
    start: int
    """No offset below this is wanted any more, whatever is delivered."""
    outstanding: set[int] = field(default_factory=set)
    consumed: set[int] = field(default_factory=set)

    def mark(self) -> tuple[int, tuple[int, ...]]:
        """Where to go on and what to skip above; what lies below is forgotten."""
        next_offset = min(self.outstanding, default=self.start)
        self.consumed = {offset for offset in self.consumed if offset > next_offset}
        return next_offset, tuple(sorted(self.consumed))


class Consumption:
    """How far a topic has been consumed, per partition, out of log order.

    Offsets have holes (transaction markers, compaction), so only delivered ones are waited for:
    the next offset is the lowest that was delivered and not consumed, or, where there is none,
    the one after the last delivered.
    """

    def __init__(self, topic: str, restored: Iterable[Consumed] = (), topic_id: str = "") -> None:
        """Raises TopicRecreated where the marks were made in another incarnation of the topic."""
        self.topic = topic
        self.topic_id = topic_id
        restored = tuple(restored)
        for mark in restored:
            if mark.topic == topic and mark.topic_id not in ("", topic_id):
                msg = (
                    f"{topic} was deleted and made anew since the newest checkpoint: what it read "
                    "there is gone, and its offsets mean nothing now; begin a new run"
                )
                raise TopicRecreated(msg)
        self._partitions = {
            mark.partition: _PartitionMarks(mark.next_offset, consumed=set(mark.above))
            for mark in restored
            if mark.topic == topic
        }

    def delivered(self, partition: int, offset: int) -> bool:
        """Note a record that was read; False if it is already consumed and must be skipped."""
        at = self._partitions.setdefault(partition, _PartitionMarks(offset))
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
        return tuple(
            Consumed(self.topic, partition, *at.mark(), self.topic_id)
            for partition, at in sorted(self._partitions.items())
        )
