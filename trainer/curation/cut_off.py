"""Rollouts that were cut off: held until they are requested again to continue."""

from dataclasses import replace

from rollcall.schemas.ids import split_continued_id
from rollcall.trainer.config.curation import Curation
from rollcall.trainer.curation.group_ledger import GroupLedger
from rollcall.trainer.curation.judge import Member, judge
from rollcall.trainer.rules.samples import Sample


class CutOff:
    """The cut-off rollouts of one run that wait to be continued."""

    def __init__(self, curation: Curation, accounts: GroupLedger) -> None:
        self._curation, self._accounts = curation, accounts
        self._members: list[Member] = []

    def is_one(self, member: Member, group: str) -> bool:
        """Return True if a member was cancelled to be continued later."""
        trajectory, reason = member.scored.trajectory, self._curation.continues
        cancelled = trajectory.status == "cancelled" and trajectory.reason == reason != ""
        return cancelled and self._accounts.drew(group)

    def hold(self, member: Member) -> bool:
        """Hold a member; return False if it was continued `retention` times already."""
        _, generation = split_continued_id(member.scored.trajectory.rollout_id)
        if 0 < self._curation.retention <= generation:
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
