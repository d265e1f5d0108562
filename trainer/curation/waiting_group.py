"""A group that waits for members, or to be trained on; and rollouts that were cut off, held until
they are requested again to continue.
"""

from dataclasses import dataclass, field, replace

from rollcall.schemas.ids import split_continued_id
from rollcall.trainer.config.curation import Curation
from rollcall.trainer.curation.group_ledger import GroupLedger
from rollcall.trainer.curation.judge import UNASKED, Member, judge
from rollcall.trainer.rules.samples import LIMITS, Sample, ScoredPlace


class CutOff:
    """The cut-off rollouts of one run that wait to be continued."""

    def __init__(self, curation: Curation, ledger: GroupLedger) -> None:
        self._curation, self._ledger = curation, ledger
        self._members: list[Member] = []

    def is_one(self, member: Member, group: str) -> bool:
        """Return True if a member was cancelled to be continued later."""
        trajectory, reason = member.scored.trajectory, self._curation.continues
        cancelled = trajectory.status == "cancelled" and trajectory.reason == reason != ""
        return cancelled and self._ledger.drew(group)

    def hold(self, member: Member) -> bool:
        """Hold a member; return False if it was continued `retention` times already."""
        _, generation = split_continued_id(member.scored.trajectory.rollout_id)
        if 0 < self._curation.groups.retention <= generation:
            return False
        self._members.append(member)
        return True

    def members(self) -> tuple[Member, ...]:
        """Return all held members."""
        return tuple(self._members)

    def let_go(self, member: Member) -> None:
        """Release the record of a rollout that was requested again."""
        self._members.remove(member)

    def samples(self) -> list[Sample]:
        """Return the finished parts of members that have tokens of our policy."""
        return [each for m in self._members if (each := self._part(m)) is not None]

    def _part(self, member: Member) -> Sample | None:
        whole = replace(member.scored.trajectory, status="finished")
        scored = replace(member.scored, trajectory=whole, total=0.0)
        return judge(scored, *member.place, self._curation).sample


@dataclass(slots=True)
class WaitingGroup:
    """A group and its members so far."""

    key: str
    size: int
    needed: int
    """The number of usable members that make it complete, before all have arrived."""
    complete: bool = False
    members: list[Member] = field(default_factory=list)

    def samples(self) -> list[Sample]:
        """Return the samples of the usable members."""
        return [member.sample for member in self.members if member.sample is not None]

    def whole(self) -> bool:
        """Return True if enough usable members have arrived."""
        return len(self.samples()) >= self.needed

    def all_there(self) -> bool:
        """Return True if no further member is awaited."""
        return self.whole() or len(self.members) >= self.size

    def may_become_whole(self) -> bool:
        """Return True if it is complete when `unasked` members are counted as usable."""
        unasked = sum(member.reason == UNASKED for member in self.members)
        return len(self.samples()) + unasked >= self.needed

    def spoilt_at_limits(self) -> bool:
        """Return True if members that ended at a limit alone kept it from being complete."""
        cut = sum(member.reason in LIMITS and not member.sample for member in self.members)
        unasked = sum(member.reason == UNASKED for member in self.members)
        return len(self.samples()) + unasked + cut >= self.needed

    def deadline(self) -> int | None:
        """Return the lowest version of its samples; of failed members if all have failed."""
        fit = [sample.min_version for sample in self.samples()]
        return min(fit or [m.version for m in self.members if m.version is not None], default=None)

    def ended_ms(self) -> int:
        """Return the end of its last member, by the log, in ms."""
        return max(member.scored.trajectory.ended_ms for member in self.members)

    def place(self) -> ScoredPlace:
        """Return the place of its first member in the log."""
        return min(member.place for member in self.members)
