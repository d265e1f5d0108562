"""The buffer of scored trajectories: it decides which are trained on, and when.

Invariant: every offered record is exactly one of held, used or dropped, and a dropped one is
counted with its length under one reason. A group leaves as a whole, in one `take`: its members are
consumed together or not at all, so a restart never finds half a group that it cannot complete.
Nothing is evicted: `full` tells the caller to pause the partitions.

Order is earliest deadline first (AstraFlow): the group with the lowest token version is the next
to go stale, so it is trained on first; `fifo` is there to compare with. Time is measured by policy
versions and by the ends of rollouts in the log. While a step is held back there may be no new
record, so a clock continues from the end of the last one. Steps that are reproduced take their
batches from the record instead.
"""

import heapq
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from rollcall.schemas.errors import Refused
from rollcall.schemas.messages import ScoredTrajectory
from rollcall.schemas.rules import choose
from rollcall.trainer.config.curation import Curation
from rollcall.trainer.config.tables import ReplayRule
from rollcall.trainer.curation.borrowed_groups import BorrowedGroups, RecordedGroups
from rollcall.trainer.curation.borrowed_samples import Reencode
from rollcall.trainer.curation.drops import Dropped, Drops, Tally
from rollcall.trainer.curation.group_gate import GroupGate
from rollcall.trainer.curation.group_ledger import GroupLedger
from rollcall.trainer.curation.judge import BESIDE_LIMIT, OUTSIDE, Member, judge
from rollcall.trainer.curation.replay import Replay, ReplayState
from rollcall.trainer.curation.waiting_group import CutOff, WaitingGroup
from rollcall.trainer.rules.catalogue import COMPLETIONS
from rollcall.trainer.rules.completion import Waiting
from rollcall.trainer.rules.samples import Sample, ScoredPlace, group_of, group_size_of
from rollcall.trainer.rules.staleness import StaleWait, oldest_kept

HELD_BACK = 2
"""The factor of the capacity while a step is held back, so that awaited groups can be read."""


class Buffer:
    """Incomplete groups, and complete ones in order of their deadlines."""

    def __init__(
        self,
        curation: Curation,
        ledger: GroupLedger | None = None,
        replay: ReplayRule | None = None,
        recorded: RecordedGroups | None = None,
        reencode: Reencode | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.curation = curation
        self.clock = clock
        self.replay = Replay(replay or ReplayRule())
        self.ledger = ledger or GroupLedger()
        self.borrowed = BorrowedGroups.of(curation, self.ledger, recorded, reencode)
        self.gate = GroupGate(curation)
        self.cut_off = CutOff(curation, self.ledger)
        self._completion = choose("batch", curation.batch, COMPLETIONS)
        self.used = 0
        self._wait = StaleWait(
            curation.staleness.bound, curation.staleness.wait_s, curation.staleness.wait_steps
        )
        self._groups: dict[str, WaitingGroup] = {}
        self._ready: list[tuple[int, ScoredPlace, str]] = []
        self._drops = Drops()
        self._losers: list[str] = []
        self._arrived = 0
        self._log_ms = 0
        self._log_at = clock()
        self._asked = (0, 0)
        """The groups and version of the last `take`; 0 groups if it returned a batch."""
        self._took_ms = 0
        """The time of the log at the last batch."""

    def offer(self, scored: ScoredTrajectory, partition: int, offset: int) -> None:
        """Add one record of `trajectories.scored`; it is held or dropped when this returns."""
        if scored.trajectory.ended_ms > self._log_ms:
            self._log_ms, self._log_at = scored.trajectory.ended_ms, self.clock()
        if self.borrowed.takes(scored, partition, offset, self._drops):
            return
        member = judge(scored, partition, offset, self.curation)
        reason = self._already_known(member)
        if reason:
            self._drops.add(member, reason)
            return
        key = group_of(scored)
        if self.cut_off.is_one(member, key):
            if self.cut_off.hold(member):
                return
            member = replace(member, reason="retention")
        group = self._groups.get(key) or self._begin(key, group_size_of(scored))
        group.members.append(member)
        if group.whole() and self.curation.groups.redundancy:
            self._losers += self.ledger.win(key)
        if group.all_there():
            self._complete(group)

    def resumed(self, member: Member) -> None:
        """Release a record that was cut off: its rollout continues under its next id."""
        self.cut_off.let_go(member)
        key, rollout_id = group_of(member.scored), member.scored.trajectory.rollout_id
        self._drops.add(member, "continued" if self.ledger.go_on(key, rollout_id) else "late")

    def _begin(self, key: str, claimed: int) -> WaitingGroup:
        size = self.ledger.size(key, claimed)
        spare = self.curation.groups.redundancy if self.ledger.drew(key) else 0
        # A smaller group keeps at least two members, since advantages compare within it.
        least = 1 if size == self.ledger.group_size else min(size, 2)
        self._groups[key] = WaitingGroup(key, size, max(least, size - spare))
        return self._groups[key]

    def take(self, groups: int, v_now: int) -> tuple[Sample, ...] | None:
        """Return the samples of the most urgent groups in log order; None if there is no batch yet.

        `groups` is `groups_per_step`; the completion rule decides how many are taken. Groups with
        v_now − min_version > max_staleness are dropped first, complete or not. Under `wait` the
        result is also None while the step would make a running group stale. Replay contributes a
        share of used groups (`uses` above 0), and other runs a share of theirs (`borrowed`).
        Raises Refused, and Unavailable with nothing taken.
        """
        if groups > self.curation.groups.capacity:
            msg = (
                f"a batch of {groups} groups from a buffer of {self.curation.groups.capacity}; "
                f"raise capacity_groups to at least {groups}"
            )
            raise Refused(msg)
        self._drop_stale(v_now)
        wanted, self._asked = self.whole(groups), (groups, v_now)
        if not wanted or self._held_back(wanted, v_now):
            return None
        samples = self.borrowed.draw(groups, self._drops)
        self._asked, self._took_ms = (0, v_now), self._now_ms()
        self.used += sum(sample.fresh for sample in samples)
        fresh = [self._use(self._groups[heapq.heappop(self._ready)[2]]) for _ in range(wanted)]
        samples += self.replay.draw(self.replay.rule.groups(groups), v_now)
        samples += [sample for group in fresh for sample in group]
        for group in fresh:
            samples += self.replay.success_added(group, samples)
            self.used += len(group)
        for group in fresh:
            self.replay.keep(group)
        return tuple(sorted(samples, key=_place))

    def whole(self, groups: int) -> int:
        """Return the number of waiting groups that form a batch now; 0 if there is none."""
        keys = [key for _, _, key in sorted(self._ready)]
        tokens = tuple(sum(s.length for s in self._groups[key].samples()) for key in keys)
        wanted = self.replay.rule.fresh(groups) - self.borrowed.ready(groups)
        taken: int = self._completion(Waiting(tokens, wanted, self.curation.groups.capacity))
        return max(0, min(taken, len(keys)))

    def cacheable(self) -> list[Sample]:
        """Return all held samples with tokens of our policy, including cut-off rollouts."""
        samples = [each for group in self._groups.values() for each in group.samples()]
        return samples + self.cut_off.samples()

    def complete(self) -> list[tuple[str, list[Sample]]]:
        """Return the complete groups, by name, each with its samples in log order."""
        groups = ((key, self._groups[key].samples()) for _, _, key in sorted(self._ready))
        return [(key, sorted(each, key=_place)) for key, each in groups]

    def spoil(self, samples: Sequence[Sample], reason: str) -> None:
        """Count samples as dropped that were taken and could not be used."""
        self.replay.forget(samples)
        fresh = [sample for sample in samples if sample.fresh]
        self.used -= len(fresh)
        for sample in fresh:
            place = sample.partition, sample.offset
            member = Member(sample.scored, place, sample.length, sample.min_version)
            self._drops.add(member, reason)

    def full(self) -> bool:
        """Return True if reading must pause. Incomplete groups do not count, since they need reads.

        Reading continues while a step is held back, since the awaited group has yet to be read.
        That ends by its deadline, or when HELD_BACK times the capacity is reached.
        """
        if len(self._ready) < self.curation.groups.capacity:
            return False
        groups, v_now = self._asked
        wanted = self.whole(groups) if groups else 0
        return not (wanted and self._held_back(wanted, v_now))

    def held(self) -> int:
        """Return the number of held records."""
        return self.ledger.held() + self.ledger.others()

    def ready_groups(self) -> int:
        return len(self._ready)

    def drops(self) -> dict[str, Tally]:
        """Return counts of dropped records so far, by reason."""
        return dict(self._drops.tallies)

    def released(self) -> tuple[Dropped, ...]:
        """Return the records dropped since the last call; a checkpoint marks them consumed."""
        return tuple(self._drops.released())

    def losers(self) -> tuple[str, ...]:
        """Return the rollouts that became redundant since the last call, to be cancelled."""
        losers, self._losers = tuple(self._losers), []
        return losers

    def replay_book(self) -> ReplayState:
        """Return the replay state and the position in recorded groups, for the checkpoint."""
        return replace(self.replay.book(), recorded=self.borrowed.mark)

    def recent(self) -> tuple[str, ...]:
        """Return names of ended rollouts and groups that were not drawn, for `restore`."""
        return self.ledger.names()

    def restore(self, recent: Iterable[str], drops: Mapping[str, Tally], used: int = 0) -> None:
        """Restore a checkpoint's state; records held at that time are read again from the log."""
        self.ledger.know(recent)
        self._drops = Drops(drops)
        self.used = used

    def give_up(self) -> int:
        """Drop every incomplete group and give up running rollouts; return the number of these.

        Used if their results have arrived as unreadable records.
        """
        waiting = [group for group in self._groups.values() if not group.complete]
        for group in waiting:
            self._drop_group(group, "incomplete")
        lost = self.ledger.lose()
        self._drops.count("lost", lost)
        return lost

    def _already_known(self, member: Member) -> str:
        if member.reason in OUTSIDE:
            return member.reason
        trajectory = member.scored.trajectory
        return self.ledger.enter(group_of(member.scored), trajectory.rollout_id, trajectory.attempt)

    def _complete(self, group: WaitingGroup) -> None:
        group.complete = True
        self.ledger.fill(group.key)
        reason = self._unfit(group)
        if reason:
            self._drop_group(group, reason)
            return
        self._arrived += 1
        urgency = group.deadline() or 0 if self.curation.groups.order == "edf" else self._arrived
        heapq.heappush(self._ready, (urgency, group.place(), group.key))

    def _unfit(self, group: WaitingGroup) -> str:
        """Return the reason why a complete group is not trained on; empty if it is."""
        samples = group.samples()
        if not group.may_become_whole() and self.curation.groups.missing == "drop":
            return BESIDE_LIMIT if group.spoilt_at_limits() else "incomplete"
        if not samples or (len(samples) == 1 and self.curation.needs_group):
            return "singleton"
        stored = self.replay.success_for(samples)
        return self.gate.rejected_by([*samples, stored] if stored else samples)

    def _held_back(self, groups: int, v_now: int) -> bool:
        """Return True if the step must wait for a running group that it would make stale."""
        if self.curation.staleness.on_stale != "wait" or len(self._ready) >= self._most_held():
            return False
        batches = len(self._ready) // groups
        # The first batch was complete when its last group had ended, or at the last `take`.
        whole = sorted(self._groups[key].ended_ms() for _, _, key in self._ready)[groups - 1]
        since_ms = max(whole, self._took_ms)
        return self._wait.holds_back(
            v_now, self._oldest_running(), batches, self._now_ms(), since_ms
        )

    def _most_held(self) -> int:
        """Return the number of complete groups that ends holding a step back: a memory bound."""
        return HELD_BACK * self.curation.groups.capacity

    def _now_ms(self) -> int:
        """Return the time of the log, advanced by a clock since its newest record was read."""
        return self._log_ms + int(1000 * (self.clock() - self._log_at))

    def _oldest_running(self) -> int | None:
        """Return the lowest version at the start of an incomplete group, as far as known."""
        begun = self.ledger.drawn.begun()
        for group in self._groups.values():
            at = None if group.complete else group.deadline()
            if at is not None:
                begun[group.key] = min(at, begun.get(group.key, at))
            if group.complete:
                begun.pop(group.key, None)
        return min(begun.values(), default=None)

    def _drop_stale(self, v_now: int) -> None:
        oldest = oldest_kept(v_now, self.curation.staleness.bound, self.curation.staleness.on_stale)
        deadlines = ((group, group.deadline()) for group in self._groups.values())
        stale = [group for group, at in deadlines if at is not None and at < oldest]
        for group in stale:
            self._drop_group(group, "stale")
        if stale:
            self._ready = [entry for entry in self._ready if entry[2] in self._groups]
            heapq.heapify(self._ready)

    def _use(self, group: WaitingGroup) -> list[Sample]:
        samples = group.samples()
        self._forget(group)
        for member in group.members:
            if member.sample is None:
                self._drops.add(member, member.reason)
        return samples

    def _drop_group(self, group: WaitingGroup, reason: str) -> None:
        self._forget(group)
        for member in group.members:
            self._drops.add(member, member.reason or reason)

    def _forget(self, group: WaitingGroup) -> None:
        del self._groups[group.key]
        self.ledger.leave(group.key)
        for member in group.members:
            trajectory = member.scored.trajectory
            self.ledger.end(group.key, trajectory.rollout_id, trajectory.attempt)


def _place(sample: Sample) -> ScoredPlace:
    return sample.partition, sample.offset
