"""The choice of the next task: curators over a run's endless series of draws, and their outcomes.

A draw's task is stored in its requests, so after a restart the log gives the tasks of earlier
draws, and the curators choose only new ones. Without curators, a draw's number fixes its task.

An outcome is ready once all members of its draw and of all draws before it have ended. So every
reader of the same records gets the same outcomes in the same order, for any interleaving of
partitions and after any restart.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random

import structlog

from rollcall.producers.admission import Draws
from rollcall.producers.curators.curator import Curator, Outcome
from rollcall.schemas.ids import digest, draw_of, request_id, split_continued_id
from rollcall.schemas.messages import UNFINISHED, RolloutRequest, ScoredTrajectory, Trajectory
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


FORCE_AFTER = 256
"""Refusals in a row after which one task is drawn without asking, so that draws never stop."""

log = structlog.get_logger()


class Curriculum:
    """The draws of one run, as its curators choose them."""

    def __init__(
        self, draws: Draws, curators: Sequence[Curator] = (), scoring_id: str = ""
    ) -> None:
        self.draws = draws
        self.curators = tuple(curators)
        self.refused = 0
        """Tasks that were drawn and not started."""
        self.forced = 0
        """Draws that were started without the consent of the curators."""
        template = draws.template
        self.outcomes = OutcomeFold(
            template.run_id, template.policy_id, scoring_id, draws.group_size
        )
        self._version, self._low = -1, 0
        self._drawn: dict[int, RolloutRequest] = {}

    @property
    def group_size(self) -> int:
        """The most members that a group can have."""
        return self.draws.group_size

    def knows(self, drawn: Mapping[int, RolloutRequest]) -> None:
        """Note the requests of earlier draws, one for each draw."""
        if self.curators:
            self._drawn |= {d: r for d, r in drawn.items() if self._fits(r)}

    def group(self, draw: int) -> list[RolloutRequest]:
        """Return the members of a drawn group, as they were published."""
        drawn = self._drawn.get(draw)
        return self.draws.members(draw, drawn) if drawn else self.draws.group(draw)

    def next_group(self, draw: int, version: int = -1) -> list[RolloutRequest]:
        """Return the members of a group, drawn now if needed, under the newest version."""
        if self.curators and draw not in self._drawn:
            self._drawn[draw] = self._draw(draw, version)
        return self.group(draw)

    def hear(self, scored: ScoredTrajectory) -> None:
        """Fold in the result of a rollout."""
        if self.curators:
            self.outcomes.take(scored)
            self._fold()

    def settle(self, low: int) -> None:
        """Note that all draws below have ended, so that missing results will not come."""
        if self.curators and low > self._low:
            self._low = low
            self.outcomes.settle(low)
            self._fold()
            self._drawn = {d: r for d, r in self._drawn.items() if d >= low}

    def _fold(self) -> None:
        for seed, outcome in self.outcomes.ready():
            told = replace(outcome, task=self.draws.task_number(seed))
            newer, self._version = told.version > self._version, max(self._version, told.version)
            for curator in self.curators:
                if newer:
                    curator.on_version(self._version)
                curator.update(told)

    def _draw(self, draw: int, version: int) -> RolloutRequest:
        for refusals in range(FORCE_AFTER):
            seed = self.draws.seed(draw, refusals)
            task = self.draws.task_number(seed)
            chance = Random(digest("admit", self.draws.run_seed, draw, refusals))
            if all(curator.admit(task, version, chance) for curator in self.curators):
                return self._shaped(draw, seed)
            self.refused += 1
        self.forced += 1
        log.warning("curator_forced_task", draw=draw, refusals=FORCE_AFTER)
        return self._shaped(draw, self.draws.seed(draw, FORCE_AFTER))

    def _shaped(self, draw: int, seed: int) -> RolloutRequest:
        """Return the common request of a draw, with its task, group size and turns."""
        shared, task = self.draws.request(draw, seed), self.draws.task_number(seed)
        size, turns = shared.group_size, shared.limits.max_turns
        for curator in self.curators:
            size = max(1, min(size, curator.rollouts(task, shared.group_size)))
            turns = max(1, min(turns, curator.turns(task, shared.limits.max_turns)))
        limits = replace(shared.limits, max_turns=turns)
        return replace(shared, group_size=size, limits=limits)

    def _fits(self, request: RolloutRequest) -> bool:
        """Return True if a request can belong to this run: no request makes a group larger."""
        return 1 <= request.group_size <= self.group_size
