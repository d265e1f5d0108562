"""Rollouts that were cancelled only for the time being: held until they are asked for again."""

from dataclasses import replace

from schemas.ids import parted_id
from trainer.accounts import Accounts
from trainer.samples import Curation, Member, Sample, judge


class CutOff:
    """Those of one run that wait to be gone on with."""

    def __init__(self, curation: Curation, accounts: Accounts) -> None:
        self._curation, self._accounts = curation, accounts
        self._members: list[Member] = []

    def is_one(self, member: Member, group: str) -> bool:
        """Whether it was cancelled only for the time being."""
        trajectory, reason = member.scored.trajectory, self._curation.continues
        cancelled = trajectory.status == "cancelled" and trajectory.reason == reason != ""
        return cancelled and self._accounts.drew(group)

    def hold(self, member: Member) -> bool:
        """Hold it; False where it was gone on with so often that it is given up."""
        _, generation = parted_id(member.scored.trajectory.rollout_id)
        if 0 < self._curation.retention <= generation:
            return False
        self._members.append(member)
        return True

    def members(self) -> tuple[Member, ...]:
        """All that are held."""
        return tuple(self._members)

    def let_go(self, member: Member) -> None:
        """It was asked for again: its record is not needed any more."""
        self._members.remove(member)

    def samples(self) -> list[Sample]:
        """What was finished of those that have anything of ours."""
        return [each for m in self._members if (each := self._part(m)) is not None]

    def _part(self, member: Member) -> Sample | None:
        whole = replace(member.scored.trajectory, status="finished")
        scored = replace(member.scored, trajectory=whole, total=0.0)
        return judge(scored, *member.place, self._curation).sample
