"""A run that stands still: it says so, lets a filtered group through, and gives up what is lost."""

from collections.abc import Callable
from dataclasses import dataclass, field

import structlog

from consumers.training.group_admission import GroupAdmission
from consumers.training.intake import Intake

IDLE_S = 30.0
NO_BATCH_S = 600.0
"""After so long without a batch the next group is trained on whatever the filters say."""

log = structlog.get_logger()


@dataclass(eq=False)
class Standstill:
    """Since when nothing came, and since when there was no batch."""

    admission: GroupAdmission
    intake: Intake
    clock: Callable[[], float]
    has_lost: bool = False
    """Whether what is in the air may never come, for the log has lost records: it counts as lost,
    once, after so long without a batch."""
    _idle_since: float = field(init=False)
    _batch_at: float = field(init=False)

    def __post_init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Count from now on."""
        self._idle_since = self._batch_at = self.clock()

    def batch(self) -> None:
        """There is a batch now."""
        self._batch_at = self.clock()

    def say_if_idle(self, moves: bool) -> None:
        """Say what is waited for, unless something came or there is nothing to wait for."""
        now, buffer = self.clock(), self.intake.buffer
        if moves:
            self._idle_since = now
        elif now - self._idle_since > IDLE_S:
            self._idle_since = now
            log.warning(
                "training_waits",
                running=self.intake.accounts.running(),
                held=buffer.held(),
                ready_groups=buffer.ready_groups(),
                needed_groups=self.admission.config.fresh_groups,
                **self._dropped(),
            )

    def say_if_forced(self) -> None:
        """Nothing passes the filters: let something through, and say so."""
        buffer = self.intake.buffer
        late = self.clock() - self._batch_at > NO_BATCH_S
        if late and self.has_lost:
            self.has_lost = False
            self.intake.unaccounted = self.intake.in_the_air()
        if late and not self.admission.stopped():
            self.batch()
            buffer.gate.force(f"there was no batch for {NO_BATCH_S / 60:g} minutes")
        if why := buffer.gate.forced():
            log.warning("group_forced_through", why=why, **self._dropped())

    def give_up(self) -> None:
        """Wait no longer for rollouts that can only have come unreadable, or are lost.

        Who does not admit does not know all that is in the air.
        """
        admission = self.admission
        if not admission.run.admits:
            return
        if admission.stopped() or admission.before_training():
            waits = not admission.evaluations.complete(admission.learner.version)
        else:
            waits = not self.intake.buffer.whole(admission.config.groups_per_step)
        if waits:
            self.intake.give_up()

    def _dropped(self) -> dict[str, int]:
        return {f"dropped_{r}": t.count for r, t in self.intake.buffer.drops().items()}
