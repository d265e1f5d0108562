"""Dropped records: each is counted under one reason with its length."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rollcall.trainer.curation.judge import Member


@dataclass(frozen=True, slots=True)
class Dropped:
    """One record that will not be trained on; its offset may be marked consumed."""

    partition: int
    offset: int
    rollout_id: str
    attempt: int
    reason: str
    length: int


@dataclass(frozen=True, slots=True)
class Tally:
    """The number of records dropped for one reason, and of sampled tokens in them."""

    count: int = 0
    length: int = 0


class Drops:
    """Counts of dropped records by reason, and the ones not yet reported."""

    def __init__(self, tallies: Mapping[str, Tally] | None = None) -> None:
        self.tallies = dict(tallies or {})
        self._released: list[Dropped] = []

    def add(self, member: Member, reason: str) -> None:
        """Drop one record."""
        trajectory = member.scored.trajectory
        self.count(reason, 1, member.length)
        self._released.append(
            Dropped(*member.place, trajectory.rollout_id, trajectory.attempt, reason, member.length)
        )

    def count(self, reason: str, records: int, length: int = 0) -> None:
        """Add to a count only, for losses without a record."""
        before = self.tallies.get(reason, Tally())
        self.tallies[reason] = Tally(before.count + records, before.length + length)

    def released(self) -> Sequence[Dropped]:
        """Return the records dropped since the last call."""
        released, self._released = tuple(self._released), []
        return released
