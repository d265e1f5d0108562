"""Counts rollouts of a run since its last step that cannot be trained on, with the reasons.

A fold of scored trajectories, which applies the trainer's test to each
(`rollcall.trainer.curation.judge`). The trainer's decisions on whole groups, such as staleness and
filters, are not included.
"""

from collections import Counter
from dataclasses import dataclass, field
from math import inf

from rollcall.consumers.history.rollouts.failures import describe_shares
from rollcall.schemas.messages import ScoredTrajectory
from rollcall.trainer.config.curation import Curation
from rollcall.trainer.curation.judge import OUTSIDE, judge

UNREAD = "claim_not_read"
"""The reason of a record whose object this process has not read; the trainer may have."""


@dataclass(slots=True)
class Untrained:
    """The training rollouts of one policy since its last step."""

    curation: Curation
    ended: int = 0
    in_a_row: int = 0
    """The number of rollouts that cannot be trained on since the last one that can."""
    by_reason: Counter[str] = field(default_factory=Counter)
    example: str = ""
    """The id of the last one that cannot be trained on."""
    least: float = inf
    most: float = -inf
    """The lowest and the highest reward of those that can be trained on."""

    def take(self, scored: ScoredTrajectory) -> bool:
        """Count one record; return True if it can be trained on."""
        member = judge(scored, 0, 0, self.curation)
        if member.reason in OUTSIDE or scored.trajectory.status == "cancelled":
            return False
        self.ended += 1
        if member.sample is None and member.reason != UNREAD:
            self.in_a_row += 1
            self.by_reason[member.reason] += 1
            self.example = scored.trajectory.rollout_id
            return False
        self.in_a_row = 0
        if member.sample is not None:
            self.least = min(self.least, member.sample.reward)
            self.most = max(self.most, member.sample.reward)
        return True

    def stepped(self) -> None:
        """Reset the counts after a step."""
        self.ended = self.in_a_row = 0
        self.by_reason.clear()
        self.least, self.most = inf, -inf

    def __str__(self) -> str:
        """`812 cannot be trained on: sampling_not_followed (100 %), e.g. ID; 9 can, ...`."""
        words = []
        if lost := self.by_reason.total():
            reasons = ", ".join(describe_shares(self.by_reason))
            words.append(f"{lost:,} cannot be trained on: {reasons}, e.g. {self.example}")
        if can := self.ended - lost:
            words.append(f"{can:,} can be trained on{self._rewards()}")
        return "; ".join(words)

    def _rewards(self) -> str:
        if self.least > self.most:
            return ""
        if self.least == self.most:
            return f", and all of them earned {self.least:g}"
        return f", and earned {self.least:g} to {self.most:g}"
