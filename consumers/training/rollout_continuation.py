"""Rollouts that are unfinished when a batch is complete: cancelled, and continued first.

A cancelled rollout continues as a fork of itself, so that nothing is sampled or trained on twice;
one that cannot be forked begins again. Its next id is a function of its own id, so a restarted
trainer finds in the log which were asked for. Source: APRIL, `algorithms` §5.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import structlog

from rollcall.consumers.training.cancels import Cancels
from rollcall.producers.submit import Submitter
from rollcall.schemas.ids import continued_id, split_continued_id
from rollcall.schemas.messages import UNFINISHED, RolloutRequest, Trajectory
from rollcall.trainer.curation.buffer import Buffer
from rollcall.trainer.curation.group_ledger import GroupLedger
from rollcall.trainer.curation.judge import Member

Continue = Callable[[Sequence[Trajectory]], Sequence[RolloutRequest]]
"""Returns the requests that continue cancelled rollouts, in order, under their old ids."""

log = structlog.get_logger()


INTERRUPT_S = 10.0
"""The longest time that a step waits for the rollouts that it cancelled to end."""


@dataclass(eq=False)
class RolloutContinuation:
    """Cancels the running rollouts when a batch is complete, and asks for their continuations."""

    buffer: Buffer
    ledger: GroupLedger
    cancels: Cancels
    submitter: Submitter
    continue_: Continue
    """Raises Unavailable if the log cannot be read now."""
    clock: Callable[[], float] = time.monotonic
    interrupted_at: float | None = None
    """Time since when a step waits for cancelled rollouts; no rollout begins meanwhile."""

    def has_ended(self) -> bool:
        """Cancel what is running, once; return True if all has ended or the wait has timed out."""
        if self.interrupted_at is None:
            self.interrupted_at = self.clock()
            self.cancel()
        running = self.ledger.unended()
        late = self.clock() - self.interrupted_at >= INTERRUPT_S
        if running and late:
            log.warning("interrupted_rollouts_not_ended", rollouts=len(running))
        return late or not running

    def cancel(self) -> None:
        """Ask for all running rollouts to end, to be continued later."""
        self.cancels.ask(self.ledger.unended(), UNFINISHED)

    def go_on(self, min_version: int) -> int:
        """Request the rest of cancelled rollouts; return how many. Raises Unavailable."""
        members = self.buffer.cut_off.members()
        if not members:
            return 0
        trajectories = [member.scored.trajectory for member in members]
        requests = [
            _next(member, request, min_version)
            for member, request in zip(members, self.continue_(trajectories), strict=True)
        ]
        self.submitter.publish(*requests)
        for member in members:
            self.buffer.resumed(member)
        log.info("rollouts_resumed", rollouts=len(members))
        return len(members)


def _next(member: Member, request: RolloutRequest, min_version: int) -> RolloutRequest:
    """Return the request under its next id, with another sampling seed."""
    own = member.scored.trajectory.rollout_id
    generation = split_continued_id(own)[1] + 1
    seed, _, _ = request.seed_key.partition("+")
    return replace(
        request,
        rollout_id=continued_id(own, generation),
        sampling_seed=f"{seed}+{generation}",
        min_policy_version=max(min_version, request.min_policy_version),
    )
