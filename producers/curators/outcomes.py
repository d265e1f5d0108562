"""Outcomes of a run's draws in their order, from scored trajectories in any order.

An outcome is ready once all members of its draw and of all draws before it have ended. So every
reader of the same records gets the same outcomes in the same order, for any interleaving of
partitions and after any restart.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

from rollcall.producers.curators.curator import Outcome
from rollcall.schemas.ids import draw_of, request_id, split_continued_id
from rollcall.schemas.messages import UNFINISHED, ScoredTrajectory, Trajectory
from rollcall.schemas.packed import ids_of, mask_of


@dataclass(slots=True)
class _OpenDraw:
    """A draw of which a record was read."""

    seed: int
    seats: dict[str, int]
    heard: dict[int, tuple[float | None, int, int]] = field(default_factory=dict)
    """Reward, turns and newest version of each member that has ended."""


@dataclass
class OutcomeFold:
    """The fold of `trajectories.scored` that feeds the curators."""

    run_id: str
    policy_id: str
    scoring_id: str
    group_size: int
    """The most members that a draw can have, whatever a record claims."""
    next_draw: int = 0
    """The first draw whose outcome was not returned yet."""
    _open: dict[int, _OpenDraw] = field(default_factory=dict)
    _low: int = 0
    """Every member of every draw below has ended, whether it was read or not."""

    def take(self, scored: ScoredTrajectory) -> None:
        """Note a record, if it is the first of a member of one of the run's draws."""
        trajectory, request = scored.trajectory, scored.trajectory.request
        if request is None or scored.scoring_id != self.scoring_id:
            return
        if request.run_id != self.run_id or request.purpose != "train":
            return
        if trajectory.reason == UNFINISHED:  # it continues, and its end comes later
            return
        draw = draw_of(self.run_id, request.group_id)
        if draw < self.next_draw:
            return
        size = min(max(1, request.group_size), self.group_size)
        at = self._open.get(draw)
        if at is None:
            seats = {request_id(self.run_id, draw, member): member for member in range(size)}
            at = _OpenDraw(request.task.seed, seats)
        seat = at.seats.get(split_continued_id(trajectory.rollout_id)[0])
        if seat is not None and seat not in at.heard:
            self._open[draw] = at
            at.heard[seat] = _reward(scored), trajectory.model_calls, self._newest(trajectory)

    def settle(self, low: int) -> None:
        """Note that all draws below have ended, so that missing members will not come."""
        self._low = max(self._low, low)

    def ready(self) -> Iterator[tuple[int, Outcome]]:
        """Yield the outcomes that are complete, each with its task's seed, in order of draws."""
        while True:
            at = self._open.get(self.next_draw)
            whole = at is not None and len(at.heard) == len(at.seats)
            if not whole and self.next_draw >= self._low:
                return
            draw, self.next_draw = self.next_draw, self.next_draw + 1
            if at is not None:
                del self._open[draw]
                yield at.seed, _outcome(draw, at)

    def _newest(self, trajectory: Trajectory) -> int:
        """Return the newest version that sampled one of the policy's tokens; -1 if none did."""
        if self.policy_id not in trajectory.policies:
            return -1
        index = trajectory.policies.index(self.policy_id)
        newest = -1
        for sequence in trajectory.sequences or ():
            ours = ids_of(sequence.versions)[mask_of(sequence.policy_index) == index]
            newest = max(newest, int(ours.max(initial=-1)))
        return newest


def _outcome(draw: int, at: _OpenDraw) -> Outcome:
    members = [at.heard[seat] for seat in sorted(at.heard)]
    scored = [(reward, turns) for reward, turns, _ in members if reward is not None]
    return Outcome(
        draw,
        at.seed,
        tuple(reward for reward, _ in scored),
        tuple(turns for _, turns in scored),
        max(version for *_, version in members),
    )


def _reward(scored: ScoredTrajectory) -> float | None:
    """Return the total, or None if it is missing or not finite."""
    total = scored.total
    return total if total is not None and math.isfinite(total) else None
