"""Which scored trajectories are trained on, and when.

The law: whatever is offered is, at any moment, exactly one of held, used or dropped, and what is
dropped is counted with its length under one reason. A group leaves whole, in one `take`: its
members are consumed together or not at all, so a restart never meets half a group that it cannot
complete. Nothing is evicted: a full buffer says so, and its caller pauses the partitions.

Order is earliest deadline first (AstraFlow): the group with the lowest token version is the next
to go stale, so it is trained on first; `fifo` is there to compare with. Time is the policy version
and the ends of rollouts; no clock is read here.
"""

import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from schemas.errors import Refused
from schemas.ids import parted_id
from schemas.messages import ScoredTrajectory
from schemas.rules import Chosen, choose
from trainer.accounts import Accounts
from trainer.catalogue import COMPLETIONS, FILTERS
from trainer.completion.waiting import Waiting
from trainer.drops import Dropped, Drops, Tally
from trainer.filters.group_filter import Filter
from trainer.foreign_groups import Foreign, RecordedGroups
from trainer.foreign_samples import Retell
from trainer.replay import Replay, ReplayBook, ReplayRule
from trainer.samples import (
    OUTSIDE,
    UNASKED,
    Curation,
    Member,
    Sample,
    ScoredPlace,
    group_of,
    group_size_of,
    judge,
)
from trainer.staleness import StaleWait, oldest_kept

FORCE_AFTER = 256
"""After so many filtered groups in a row one is let through, lest the trainer wait for ever."""


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

    def __init__(
        self,
        curation: Curation,
        accounts: Accounts | None = None,
        replay: ReplayRule | None = None,
        recorded: RecordedGroups | None = None,
        retell: Retell | None = None,
    ) -> None:
        self.curation = curation
        self.replay = Replay(replay or ReplayRule())
        self.accounts = accounts or Accounts()
        self.foreign = Foreign.of(curation, self.accounts, recorded, retell)
        self.filters = group_filters(curation)
        self._completion = choose("batch", curation.batch, COMPLETIONS)
        self.used = 0
        self._wait = StaleWait(
            curation.max_staleness, curation.stale_wait_s, curation.stale_wait_steps
        )
        self._groups: dict[str, _Group] = {}
        self._ready: list[tuple[int, ScoredPlace, str]] = []
        self._drops = Drops()
        self._losers: list[str] = []
        self._arrived = 0
        self._log_ms = 0
        self._unfinished: list[Member] = []
        self._filtered_in_a_row = 0
        self._force, self._forced = "", ""

    def offer(self, scored: ScoredTrajectory, partition: int, offset: int) -> None:
        """Take one record of `trajectories.scored` in; it is held or dropped when this returns."""
        self._log_ms = max(self._log_ms, scored.trajectory.ended_ms)
        if self.foreign.takes(scored, partition, offset, self._drops):
            return
        member = judge(scored, partition, offset, self.curation)
        reason = self._already_known(member)
        if reason:
            self._drops.add(member, reason)
            return
        key = group_of(scored)
        if self._goes_on(member, key):
            if self._may_go_on(member):
                self._unfinished.append(member)
                return
            member = replace(member, reason="retention")
        group = self._groups.get(key) or self._begin(key, group_size_of(scored))
        group.members.append(member)
        whole = len(group.samples()) >= group.needed
        if whole and self.curation.redundancy:
            self._losers += self.accounts.win(key)
        if whole or len(group.members) >= group.size:
            self._complete(group)

    def _goes_on(self, member: Member, key: str) -> bool:
        """Whether it was cancelled only for the time being."""
        trajectory, reason = member.scored.trajectory, self.curation.continues
        cancelled = trajectory.status == "cancelled" and trajectory.reason == reason != ""
        return cancelled and self.accounts.drew(key)

    def _may_go_on(self, member: Member) -> bool:
        _, generation = parted_id(member.scored.trajectory.rollout_id)
        return not 0 < self.curation.retention <= generation

    def unfinished(self) -> tuple[Member, ...]:
        """What was cancelled and is to be gone on with: held until `went_on` is told of it."""
        return tuple(self._unfinished)

    def went_on(self, member: Member) -> None:
        """It was asked for again, under its next id: its record is not needed any more."""
        self._unfinished.remove(member)
        key, rollout_id = group_of(member.scored), member.scored.trajectory.rollout_id
        self._drops.add(member, "continued" if self.accounts.go_on(key, rollout_id) else "late")

    def _begin(self, key: str, claimed: int) -> _Group:
        size = self.accounts.size(key, claimed)
        spare = self.curation.redundancy if self.accounts.drew(key) else 0
        # A group that a curator has made smaller is still one to compare in.
        least = 1 if size == self.accounts.group_size else min(size, 2)
        self._groups[key] = _Group(key, size, max(least, size - spare))
        return self._groups[key]

    def take(self, groups: int, v_now: int) -> tuple[Sample, ...] | None:
        """The samples of the most urgent groups in log order; None while they are no whole batch.

        `groups` are `groups_per_step`; how many are taken says the rule of the batch. Groups with
        v_now − min_version > max_staleness are dropped first, complete or not. Under
        `wait` it is None too while a running group would go stale by the step. A share of them was
        used before, where replay has some; these have `uses`; and a share is `lent` by other runs.
        Raises Refused, and Unavailable with nothing taken.
        """
        if groups > self.curation.capacity_groups:
            msg = (
                f"a batch of {groups} groups from a buffer of {self.curation.capacity_groups}; "
                f"raise capacity_groups to at least {groups}"
            )
            raise Refused(msg)
        self._drop_stale(v_now)
        wanted = self.whole(groups)
        if not wanted or self._held_back(wanted, v_now):
            return None
        samples = self.foreign.draw(groups, self._drops)
        self.used += sum(sample.fresh for sample in samples)
        fresh = [self._use(self._groups[heapq.heappop(self._ready)[2]]) for _ in range(wanted)]
        samples += self.replay.draw(self.replay.rule.groups(groups), v_now)
        samples += [sample for group in fresh for sample in group]
        for group in fresh:
            samples += self.replay.lend(group, samples)
            self.used += len(group)
        for group in fresh:
            self.replay.keep(group)
        return tuple(sorted(samples, key=_place))

    def whole(self, groups: int) -> int:
        """How many of the groups that wait are a whole batch now; 0 while none is."""
        keys = [key for _, _, key in sorted(self._ready)]
        tokens = tuple(sum(s.length for s in self._groups[key].samples()) for key in keys)
        wanted = self.replay.rule.fresh(groups) - self.foreign.ready(groups)
        taken: int = self._completion(Waiting(tokens, wanted, self.curation.capacity_groups))
        return max(0, min(taken, len(keys)))

    def noteworthy(self) -> list[Sample]:
        """All that is held with tokens of ours, what was cut off for the time being included."""
        members = [member for group in self._groups.values() for member in group.members]
        found = [member.sample for member in members if member.sample is not None]
        return found + [each for m in self._unfinished if (each := self._part(m)) is not None]

    def _part(self, member: Member) -> Sample | None:
        """What was finished of a rollout that is gone on with."""
        whole = replace(member.scored.trajectory, status="finished")
        scored = replace(member.scored, trajectory=whole, total=0.0)
        return judge(scored, *member.place, self.curation).sample

    def complete(self) -> list[tuple[str, list[Sample]]]:
        """The groups that wait to be trained on, by name, each with its samples in log order."""
        groups = ((key, self._groups[key].samples()) for _, _, key in sorted(self._ready))
        return [(key, sorted(each, key=_place)) for key, each in groups]

    def spoil(self, samples: Sequence[Sample], reason: str) -> None:
        """Count samples that were taken and could not be used as dropped after all."""
        self.replay.forget(samples)
        fresh = [sample for sample in samples if sample.fresh]
        self.used -= len(fresh)
        for sample in fresh:
            place = sample.partition, sample.offset
            member = Member(sample.scored, place, sample.length, sample.min_version)
            self._drops.add(member, reason)

    def force(self, why: str) -> None:
        """Let the next group through whatever the filters say."""
        self._force = why

    def forced(self) -> str:
        """Why a group was let through since this was last asked; empty where none was."""
        forced, self._forced = self._forced, ""
        return forced

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
        return dict(self._drops.tallies)

    def released(self) -> tuple[Dropped, ...]:
        """What was dropped since this was last asked; mark it consumed with the next checkpoint."""
        return tuple(self._drops.released())

    def losers(self) -> tuple[str, ...]:
        """Rollouts that became redundant since this was last asked; nobody needs them any more."""
        losers, self._losers = tuple(self._losers), []
        return losers

    def replay_book(self) -> ReplayBook:
        """What may be trained on again, and how far recorded groups are, for the checkpoint."""
        return replace(self.replay.book(), recorded=self.foreign.mark)

    def recent(self) -> tuple[str, ...]:
        """What is gone for good and was not drawn by admission; `restore` knows it again."""
        return self.accounts.names()

    def restore(self, recent: Iterable[str], drops: Mapping[str, Tally], used: int = 0) -> None:
        """Go on where a checkpoint stood; what was held then is read again from the log."""
        self.accounts.know(recent)
        self._drops = Drops(drops)
        self.used = used

    def give_up(self) -> int:
        """Drop every incomplete group and all that is in the air; return how many were there.

        For where they have come, but as records that nobody can read.
        """
        waiting = [group for group in self._groups.values() if not group.complete]
        for group in waiting:
            self._drop_group(group, "incomplete")
        lost = self.accounts.lose()
        self._drops.count("lost", lost)
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
        self._arrived += 1
        urgency = group.deadline() or 0 if self.curation.order == "edf" else self._arrived
        heapq.heappush(self._ready, (urgency, places, group.key))

    def _unfit(self, group: _Group) -> str:
        """Why a group with all its members is not trained on; empty if it is."""
        samples = group.samples()
        unasked = sum(member.reason == UNASKED for member in group.members)
        if len(samples) + unasked < group.needed and self.curation.missing == "drop":
            return "incomplete"
        if not samples or (len(samples) == 1 and self.curation.needs_group):
            return "singleton"
        stored = self.replay.success_for(samples)
        return self._filtered([*samples, stored] if stored else samples)

    def _filtered(self, samples: list[Sample]) -> str:
        rejected = next((each.rule.name for each in self.filters if not each(samples)), "")
        if rejected and self._filtered_in_a_row >= FORCE_AFTER:
            self._force = f"the last {FORCE_AFTER} groups were filtered"
        if not rejected or self._force:
            self._forced = self._force if rejected else self._forced
            self._filtered_in_a_row, self._force = 0, ""
            return ""
        self._filtered_in_a_row += 1
        return rejected

    def _held_back(self, groups: int, v_now: int) -> bool:
        """Whether a step now would make a group stale that is running, and that is waited for."""
        if self.curation.on_stale != "wait":
            return False
        batches = len(self._ready) // groups
        return self._wait.holds_back(v_now, self._oldest_running(), batches, self._log_ms)

    def _oldest_running(self) -> int | None:
        """The lowest version that an incomplete group was begun under, as far as it is known."""
        begun = self.accounts.begun()
        for group in self._groups.values():
            at = None if group.complete else group.deadline()
            if at is not None:
                begun[group.key] = min(at, begun.get(group.key, at))
            if group.complete:
                begun.pop(group.key, None)
        return min(begun.values(), default=None)

    def _drop_stale(self, v_now: int) -> None:
        oldest = oldest_kept(v_now, self.curation.max_staleness, self.curation.on_stale)
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
                self._drops.add(member, member.reason)
        return samples

    def _drop_group(self, group: _Group, reason: str) -> None:
        self._forget(group)
        for member in group.members:
            self._drops.add(member, member.reason or reason)

    def _forget(self, group: _Group) -> None:
        del self._groups[group.key]
        self.accounts.leave(group.key)
        for member in group.members:
            trajectory = member.scored.trajectory
            self.accounts.end(group.key, trajectory.rollout_id, trajectory.attempt)


def group_filters(curation: Curation) -> list[Chosen[Filter]]:
    """The filters that choose among groups; the others choose among the turns of a batch."""
    chosen = [choose("filters", each, FILTERS) for each in curation.filters]
    return [each for each in chosen if not each.needs("entropy")]


def worth_training(filters: Sequence[Chosen[Filter]], samples: Sequence[Sample]) -> bool:
    """Whether no filter rejects a group."""
    return all(each(samples) for each in filters)


def _place(sample: Sample) -> ScoredPlace:
    return sample.partition, sample.offset
