"""Detection of stalls: log them, let a filtered group through, give up lost rollouts."""

from collections.abc import Callable
from dataclasses import dataclass, field

import structlog

from rollcall.consumers.training.group_admission import GroupAdmission
from rollcall.consumers.training.intake import Intake

IDLE_S = 30.0
NO_BATCH_S = 600.0
"""Time without a batch after which the next group is trained on whatever the filters say."""

log = structlog.get_logger()


@dataclass(eq=False)
class StallDetector:
    """Times since when nothing came, and since when there was no batch."""

    admission: GroupAdmission
    intake: Intake
    clock: Callable[[], float]
    has_lost: bool = False
    """True if rollouts in flight may never come, since the log has lost records: after
    `NO_BATCH_S` without a batch they count as lost, once."""
    _idle_since: float = field(init=False)
    _batch_at: float = field(init=False)

    def __post_init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Restart both times now."""
        self._idle_since = self._batch_at = self.clock()

    def batch(self) -> None:
        """Note that there is a batch now."""
        self._batch_at = self.clock()

    def log_if_idle(self, moves: bool) -> None:
        """Log what is waited for, unless something came or there is nothing to wait for."""
        now, buffer = self.clock(), self.intake.buffer
        if moves:
            self._idle_since = now
        elif now - self._idle_since > IDLE_S:
            self._idle_since = now
            log.warning(
                "training_waits",
                running=self.intake.ledger.running(),
                held=buffer.held(),
                ready_groups=buffer.ready_groups(),
                needed_groups=self.admission.config.fresh_groups,
                **self._dropped(),
            )

    def log_if_forced(self) -> None:
        """Let a group through if the filters have passed none for too long, and log it."""
        buffer = self.intake.buffer
        late = self.clock() - self._batch_at > NO_BATCH_S
        if late and self.has_lost:
            self.has_lost = False
            # Count all of them as unreadable, so that `give_up` gives them up.
            self.intake.unaccounted = self.intake.in_the_air()
        if late and not self.admission.stopped():
            self.batch()
            buffer.gate.force(f"there was no batch for {NO_BATCH_S / 60:g} minutes")
        if why := buffer.gate.forced():
            log.warning("group_forced_through", why=why, **self._dropped())

    def give_up(self) -> None:
        """Stop waiting for rollouts that can only have come unreadable, or are lost.

        A trainer that does not admit does not know all rollouts in flight, so it gives up none.
        """
        admission = self.admission
        if not admission.run.admits:
            return
        if admission.stopped() or admission.before_training():
            waits = not admission.evaluations.complete(admission.learner.version)
        else:
            waits = not self.intake.buffer.whole(admission.config.groups.per_step)
        if waits:
            self.intake.give_up()

    def _dropped(self) -> dict[str, int]:
        return {f"dropped_{r}": t.count for r, t in self.intake.buffer.drops().items()}
