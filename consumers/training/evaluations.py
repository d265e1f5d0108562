"""When held-out evaluations are asked for, what they come to, and whether they end a run."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import structlog

from consumers.heldout import HeldOut
from schemas.messages import RolloutRequest, ScoredTrajectory

log = structlog.get_logger()


@dataclass(eq=False)
class Evaluations:
    """Those of one run; without a plan there are none, and nobody waits for any."""

    heldout: HeldOut | None
    publish: Callable[..., None]
    """All of the requests that it is given, or, where it raises Unavailable, none."""
    on_the_log: frozenset[str]
    """Rollouts that another trainer of the run has asked for."""
    reached: bool = False
    """Whether the newest version that is wholly evaluated reached the goal."""

    def due(self, step: int) -> bool:
        """Whether the plan wants an evaluation after this step."""
        return self.heldout is not None and self.heldout.due(step)

    def ask(self, version: int) -> None:
        """Have a version evaluated, once; raises Unavailable before anything is asked for."""
        if self.heldout is None or version in self.heldout.asked:
            return
        requests = self.heldout.plan.requests(version)
        self.publish(*(r for r in requests if r.rollout_id not in self.on_the_log))
        self.heldout.asked.append(version)

    def complete(self, version: int) -> bool:
        """Whether nothing is waited for any more about a version."""
        return self.heldout is None or self.heldout.complete(version)

    def missing(self) -> int:
        """How many results have not come of what was asked for."""
        return sum(self.heldout.missing(v) for v in self.heldout.asked) if self.heldout else 0

    def awaited(self) -> set[int]:
        """Versions that are being evaluated: their weights must stay."""
        return {v for v in self.heldout.asked if not self.complete(v)} if self.heldout else set()

    def requests_of(self, group: str) -> Iterable[RolloutRequest]:
        """The requests of one evaluation that was asked for, by their group; else none."""
        return self.heldout.requests_of(group) if self.heldout else ()

    def hear(self, scored: ScoredTrajectory) -> None:
        """Note a scored trajectory, if it is of an evaluation."""
        version = self.heldout.take(scored) if self.heldout else None
        if version is not None:
            self._conclude(version)

    def give_up(self) -> int:
        """Count what is missing as saying nothing; returns how many."""
        lost = 0
        for version in sorted(self.awaited()):
            lost += self.heldout.give_up(version) if self.heldout else 0
            self._conclude(version)
        return lost

    def _conclude(self, version: int) -> None:
        """At the goal the last weights are evaluated, and that is it."""
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
