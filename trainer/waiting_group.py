"""A group that waits to be complete, or to be trained on."""

from dataclasses import dataclass, field

from trainer.samples import LIMITS, UNASKED, Member, Sample, ScoredPlace


@dataclass(slots=True)
class WaitingGroup:
    """What has come of it so far."""

    key: str
    size: int
    needed: int
    """So many members that can be trained on make it whole, before all of them have come."""
    complete: bool = False
    members: list[Member] = field(default_factory=list)

    def samples(self) -> list[Sample]:
        """Of the members that can be trained on."""
        return [member.sample for member in self.members if member.sample is not None]

    def whole(self) -> bool:
        """Whether enough have come that can be trained on."""
        return len(self.samples()) >= self.needed

    def all_there(self) -> bool:
        """Whether nobody is waited for any more."""
        return self.whole() or len(self.members) >= self.size

    def may_become_whole(self) -> bool:
        """Whether those that were never asked for would have made it whole."""
        unasked = sum(member.reason == UNASKED for member in self.members)
        return len(self.samples()) + unasked >= self.needed

    def spoilt_at_limits(self) -> bool:
        """Whether those that ended at a limit would have made it whole, by themselves."""
        cut = sum(member.reason in LIMITS and not member.sample for member in self.members)
        unasked = sum(member.reason == UNASKED for member in self.members)
        return len(self.samples()) + unasked + cut >= self.needed

    def deadline(self) -> int | None:
        """The lowest version that would be trained on; of failed members where all have failed."""
        fit = [sample.min_version for sample in self.samples()]
        return min(fit or [m.version for m in self.members if m.version is not None], default=None)

    def ended_ms(self) -> int:
        """When the last of its members ended, by the log."""
        return max(member.scored.trajectory.ended_ms for member in self.members)

    def place(self) -> ScoredPlace:
        """Where the first of its members lies."""
        return min(member.place for member in self.members)
