"""Groups of other runs that wait to be trained on, and their number in a batch.

Invariant: shared records are held, used or dropped, and counted, like our own; their offsets are
not consumed before. So a restarted trainer reads them again, and needs no further state. Recorded
groups lie in the past of the log; their source keeps its position.
"""

from dataclasses import dataclass, field
from typing import Protocol, Self

from rollcall.schemas.errors import Refused
from rollcall.schemas.messages import ScoredTrajectory
from rollcall.trainer.config.curation import Curation
from rollcall.trainer.config.tables import Share, groups_of
from rollcall.trainer.curation.borrowed_samples import Reencode, judge_shared
from rollcall.trainer.curation.drops import Drops
from rollcall.trainer.curation.group_ledger import GroupLedger
from rollcall.trainer.curation.judge import Member
from rollcall.trainer.rules.samples import Sample, group_of, group_size_of

EQUAL = 1e-8
"""Rewards of a group count as equal, without an advantage, up to this difference."""

Mark = tuple[int, ...]
"""The position in recorded groups: passes, offset and partition; empty at the beginning."""


class RecordedGroups(Protocol):
    """A source of recorded groups."""

    def ready(self, groups: int) -> int:
        """Return the number of available groups, at most `groups`."""
        ...

    def draw(self, groups: int) -> list[Sample]:
        """Return the members of the next groups. Raises Unavailable with nothing drawn."""
        ...

    @property
    def mark(self) -> Mark:
        """The position, for the checkpoint."""
        ...


@dataclass(eq=False)
class SharedGroups:
    """The newest complete groups of other runs, and incomplete ones."""

    share: Share
    curation: Curation
    reencode: Reencode
    ledger: GroupLedger
    """The ledger that track held and ended rollouts of other runs, by name."""
    _members: dict[str, dict[tuple[str, int], Member]] = field(default_factory=dict)
    """By group, then by rollout and attempt; complete groups are in `_ready` too."""
    _ready: dict[str, tuple[Sample, ...]] = field(default_factory=dict)
    _log_ms: int = 0

    def wants(self, scored: ScoredTrajectory) -> bool:
        """Return True if a record is of another run whose groups are used here."""
        request = scored.trajectory.request
        if request is None or request.purpose != "train":
            return False
        recorded = self.curation.recorded
        if request.run_id in (self.curation.run_id, recorded.run if recorded else ""):
            return False
        return self.share.wants(request.run_id)

    def offer(self, scored: ScoredTrajectory, partition: int, offset: int, drops: Drops) -> None:
        """Add one wanted record; it is held or dropped when this returns."""
        member = judge_shared(scored, partition, offset, self.curation, self.reencode)
        key, trajectory = group_of(scored), scored.trajectory
        self._log_ms = max(self._log_ms, trajectory.ended_ms)
        name = trajectory.rollout_id, trajectory.attempt
        known = self.ledger.enter(key, *name)
        if known:
            drops.add(member, known)
        else:
            members = self._members.setdefault(key, {})
            members[name] = member
            if len(members) == group_size_of(scored):
                self._complete(key, drops)
        self._forget_old(drops)

    def ready(self, groups: int) -> int:
        """Return the number of complete groups, at most `groups`."""
        return min(groups, len(self._ready))

    def draw(self, groups: int, drops: Drops) -> list[Sample]:
        """Return the members of the newest groups, by the time of the log."""
        drawn: list[Sample] = []
        for key in self._newest()[: max(groups, 0)]:
            drawn += self._ready[key]
            for member in self._leave(key):
                if member.sample is None:
                    drops.add(member, member.reason)
        return drawn

    def _complete(self, key: str, drops: Drops) -> None:
        members = self._members[key].values()
        samples = tuple(m.sample for m in members if m.sample is not None)
        rewards = [sample.reward for sample in samples]
        if len(samples) < len(members) and self.curation.groups.missing == "drop":
            self._drop(key, "shared_incomplete", drops)
        elif max(rewards, default=0.0) - min(rewards, default=0.0) <= EQUAL:
            self._drop(key, "shared_equal", drops)  # no advantage: it would waste a place
        else:
            self._ready[key] = samples
        for surplus in self._newest()[self.share.capacity :]:
            self._drop(surplus, "shared_surplus", drops)

    def _newest(self) -> list[str]:
        def age(key: str) -> tuple[int, tuple[int, int]]:
            members = self._members[key].values()
            return max(_ended_ms(m) for m in members), max(m.place for m in members)

        return sorted(self._ready, key=age, reverse=True)

    def _forget_old(self, drops: Drops) -> None:
        oldest = self._log_ms - 1000 * self.share.max_age_s
        for key, members in list(self._members.items()):
            if max(map(_ended_ms, members.values()), default=0) < oldest:
                self._drop(key, "shared_old", drops)

    def _drop(self, key: str, reason: str, drops: Drops) -> None:
        for member in self._leave(key):
            drops.add(member, member.reason or reason)

    def _leave(self, key: str) -> list[Member]:
        self._ready.pop(key, None)
        members = self._members.pop(key)
        self.ledger.leave(key)
        for name in members:
            self.ledger.end(key, *name)
        return list(members.values())


@dataclass(frozen=True)
class BorrowedGroups:
    """Both sources of groups of other runs, for the buffer; a batch waits for neither."""

    curation: Curation
    recorded: RecordedGroups | None = None
    shared: SharedGroups | None = None

    @classmethod
    def of(
        cls,
        curation: Curation,
        ledger: GroupLedger,
        recorded: RecordedGroups | None,
        reencode: Reencode | None,
    ) -> Self:
        """Build the sources that `curation` names. Raises Refused if a reader is missing."""
        share = curation.share
        if (curation.recorded is None) != (recorded is None) or (share and reencode is None):
            msg = "recorded and share of [learner] need somebody who reads what is others'"
            raise Refused(msg)
        shared = SharedGroups(share, curation, reencode, ledger) if share and reencode else None
        return cls(curation, recorded, shared)

    def takes(self, scored: ScoredTrajectory, partition: int, offset: int, drops: Drops) -> bool:
        """Hold or drop a shared record and return True; False for any other record."""
        if self.shared is None or not self.shared.wants(scored):
            return False
        self.shared.offer(scored, partition, offset, drops)
        return True

    def ready(self, groups: int) -> int:
        """Return the number of groups of other runs that a batch would contain now."""
        recorded = self.recorded.ready(self._recorded(groups)) if self.recorded else 0
        return recorded + (self.shared.ready(self._shared(groups)) if self.shared else 0)

    def draw(self, groups: int, drops: Drops) -> list[Sample]:
        """Return the members of their groups in a batch. Raises Unavailable with nothing drawn."""
        drawn = self.recorded.draw(self._recorded(groups)) if self.recorded else []
        return drawn + (self.shared.draw(self._shared(groups), drops) if self.shared else [])

    @property
    def mark(self) -> Mark:
        """The position in recorded groups."""
        return self.recorded.mark if self.recorded else ()

    def _recorded(self, groups: int) -> int:
        rule = self.curation.recorded
        return groups_of(rule.ratio, groups) if rule else 0

    def _shared(self, groups: int) -> int:
        rule = self.curation.share
        return groups_of(rule.ratio, groups) if rule else 0


def _ended_ms(member: Member) -> int:
    return member.scored.trajectory.ended_ms
