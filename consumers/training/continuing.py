"""What a complete batch leaves unfinished: cancelled, and gone on with first in the next round.

A rollout that was cancelled for this goes on as a fork of itself, so that nothing is sampled or
trained on twice; one that cannot be forked begins again. Its next id is a function of its own, so a
trainer that begins again finds in the log which were asked for. Source: APRIL, `algorithms` §5.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import structlog

from consumers.training.cancels import Cancels
from producers.submit import Submitter
from schemas.ids import continued_id, parted_id
from schemas.messages import UNFINISHED, RolloutRequest, Trajectory
from trainer.accounts import Accounts
from trainer.curation import Buffer
from trainer.samples import Member

Continue = Callable[[Sequence[Trajectory]], Sequence[RolloutRequest]]
"""The requests by which cancelled rollouts go on, in order, still under their own ids."""

log = structlog.get_logger()


INTERRUPT_S = 10.0
"""So long a step waits at most for what it has cut off to end."""


@dataclass(eq=False)
class Continuing:
    """Ends what is running when a batch is there, and asks for it again when it has ended."""

    buffer: Buffer
    accounts: Accounts
    cancels: Cancels
    submitter: Submitter
    continue_: Continue
    """Raises Unavailable where the log cannot be read now."""
    clock: Callable[[], float] = time.monotonic
    interrupted_at: float | None = None
    """Since when a step waits for what it has cut off; nothing begins meanwhile."""

    def has_ended(self) -> bool:
        """Cut off what is running, once; whether all of it has ended, or is waited for no more."""
        if self.interrupted_at is None:
            self.interrupted_at = self.clock()
            self.cancel()
        running = self.accounts.unended()
        late = self.clock() - self.interrupted_at >= INTERRUPT_S
        if running and late:
            log.warning("interrupted_rollouts_have_not_ended", rollouts=len(running))
        return late or not running

    def cancel(self) -> None:
        """Have all that is running end for now."""
        self.cancels.ask(self.accounts.unended(), UNFINISHED)

    def go_on(self, min_version: int) -> int:
        """Ask for the rest of what was cancelled; returns how many. Raises Unavailable."""
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
            self.buffer.went_on(member)
        log.info("rollouts_gone_on_with", rollouts=len(members))
        return len(members)


def _next(member: Member, request: RolloutRequest, min_version: int) -> RolloutRequest:
    """A request under the next id, with a seed of its own."""
    own = member.scored.trajectory.rollout_id
    generation = parted_id(own)[1] + 1
    seed, _, _ = request.seed_key.partition("+")
    return replace(
        request,
        rollout_id=continued_id(own, generation),
        sampling_seed=f"{seed}+{generation}",
        min_policy_version=max(min_version, request.min_policy_version),
    )
