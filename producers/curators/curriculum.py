"""The choice of the next task: curators over a run's endless series of draws.

A draw's task is stored in its requests, so after a restart the log gives the tasks of earlier
draws, and the curators choose only new ones. Without curators, a draw's number fixes its task.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from random import Random

import structlog

from rollcall.producers.admission import Draws
from rollcall.producers.curators.curator import Curator
from rollcall.producers.curators.outcomes import OutcomeFold
from rollcall.schemas.ids import digest
from rollcall.schemas.messages import RolloutRequest, ScoredTrajectory

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
