"""A group that waits for members, or to be trained on."""

from dataclasses import dataclass, field

from rollcall.trainer.curation.judge import UNASKED, Member
from rollcall.trainer.rules.samples import LIMITS, Sample, ScoredPlace


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
