"""What was dropped: each record under one reason, counted with its length."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trainer.samples import RENAMED, Member


@dataclass(frozen=True, slots=True)
class Dropped:
    """One record that will not be trained on; its place in the log is free to be consumed."""

    partition: int
    offset: int
    rollout_id: str
    attempt: int
    reason: str
    length: int


@dataclass(frozen=True, slots=True)
class Tally:
    """How many records were dropped for one reason, and how many sampled tokens they held."""

    count: int = 0
    length: int = 0


class Drops:
    """What was dropped so far, by reason, and what of it has not been told yet."""

    def __init__(self, tallies: Mapping[str, Tally] | None = None) -> None:
        self.tallies = under_names_of_now(tallies or {})
        self._released: list[Dropped] = []

    def add(self, member: Member, reason: str) -> None:
        """One record will not be trained on."""
        trajectory = member.scored.trajectory
        self.count(reason, 1, member.length)
        self._released.append(
            Dropped(*member.place, trajectory.rollout_id, trajectory.attempt, reason, member.length)
        )

    def count(self, reason: str, records: int, length: int = 0) -> None:
        """So many are lost of which there is no record."""
        before = self.tallies.get(reason, Tally())
        self.tallies[reason] = Tally(before.count + records, before.length + length)

    def released(self) -> Sequence[Dropped]:
        """What was dropped since this was last asked."""
        released, self._released = tuple(self._released), []
        return released


def under_names_of_now(drops: Mapping[str, Tally]) -> dict[str, Tally]:
    """What was dropped, also where a release with other names for the reasons has counted it."""
    counted: dict[str, Tally] = {}
    for reason, tally in drops.items():
        name = RENAMED.get(reason, reason)
        before = counted.get(name, Tally())
        counted[name] = Tally(before.count + tally.count, before.length + tally.length)
    return counted
