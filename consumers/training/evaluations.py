"""Held-out evaluations: when they are requested, their results, and whether they end a run."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import structlog

from rollcall.consumers.heldout import HeldOut
from rollcall.schemas.messages import RolloutRequest, ScoredTrajectory

log = structlog.get_logger()


@dataclass(eq=False)
class Evaluations:
    """The evaluations of one run; none without a plan."""

    heldout: HeldOut | None
    publish: Callable[..., None]
    """Publishes all of the requests, or raises Unavailable and publishes none."""
    on_the_log: frozenset[str]
    """Rollouts that an earlier trainer of the run has asked for."""
    reached: bool = False
    """True if the newest fully evaluated version reached the goal."""

    def due(self, step: int) -> bool:
        """Return True if the plan evaluates after this step."""
        return self.heldout is not None and self.heldout.due(step)

    def ask(self, version: int) -> None:
        """Request the evaluation of a version, once. Raises Unavailable, with nothing requested."""
        if self.heldout is None or version in self.heldout.asked:
            return
        requests = self.heldout.plan.requests(version)
        self.publish(*(r for r in requests if r.rollout_id not in self.on_the_log))
        self.heldout.asked.append(version)

    def complete(self, version: int) -> bool:
        """Return True if no result of a version is outstanding."""
        return self.heldout is None or self.heldout.complete(version)

    def missing(self) -> int:
        """Count the results that are outstanding."""
        return sum(self.heldout.missing(v) for v in self.heldout.asked) if self.heldout else 0

    def awaited(self) -> set[int]:
        """Return the versions under evaluation, whose weights must be kept."""
        return {v for v in self.heldout.asked if not self.complete(v)} if self.heldout else set()

    def requests_of(self, group: str) -> Iterable[RolloutRequest]:
        """Return the requests of one evaluation by its group, or none if it was not asked for."""
        return self.heldout.requests_of(group) if self.heldout else ()

    def hear(self, scored: ScoredTrajectory) -> None:
        """Note a scored trajectory if it belongs to an evaluation."""
        version = self.heldout.take(scored) if self.heldout else None
        if version is not None:
            self._conclude(version)

    def give_up(self) -> int:
        """Count outstanding results as failed to arrive; return their number."""
        lost = 0
        for version in sorted(self.awaited()):
            lost += self.heldout.give_up(version) if self.heldout else 0
            self._conclude(version)
        return lost

    def _conclude(self, version: int) -> None:
        """Log the result of a complete version, and note whether the goal is reached."""
        if self.heldout is None or not self.heldout.complete(version):
            return
        success = self.heldout.success(version)
        log.info(
            "held_out",
            version=version,
            success=None if success is None else round(success, 4),
            failed=sum(result.failed for result in self.heldout.counted(version)),
            goal_reached=self.heldout.reached_by(version),
            rollouts=len(self.heldout.counted(version)),
        )
        self.reached = self.heldout.reached()
