"""The conductor's state of a run beyond the figures, and the end of a run that only fails."""

import time
from collections.abc import Collection
from dataclasses import dataclass, field

from rollcall.compose.runs.run_folder import RunFolder
from rollcall.consumers.history.runs.run_figures import RunFigures
from rollcall.schemas.errors import RollcallError
from rollcall.trainer.config.curation import Curation

LEAST_PATIENCE = 64
WAITING_NAMED = 6
SAID_AFTER = 4
"""The number of batches whose rollouts may end without a step before the screen says so."""


class KeepsFailing(RollcallError):
    """Too many rollouts in a row failed, so the run makes no progress."""


class NothingTrained(RollcallError):
    """Too many rollouts ended without a training step, so the run makes no progress."""


@dataclass(slots=True)
class RunWatch:
    """The watch over a running run."""

    steps: int
    """The most steps of its trainer."""
    patience: int
    """The run ends when this many rollouts in a row fail, or cannot be trained on."""
    curation: Curation | None = None
    """The rules by which its trainer accepts a rollout."""
    batch: int = 0
    """The number of rollouts of a step."""
    give_up: int = 0
    """The run ends when this many rollouts have ended since the last step; 0 is no bound."""
    workers: Collection[str] = ()
    """The names of the workers that read a group."""
    ready: set[str] = field(default_factory=set)
    """Those of them that have joined their group."""
    paused: bool = False
    began: float = field(default_factory=time.monotonic)

    def require_progress(self, figures: RunFigures) -> None:
        """Raise KeepsFailing or NothingTrained if too many rollouts in a row were useless."""
        if figures.failing >= self.patience:
            raise self._failing(figures)
        untrained = figures.untrained
        if untrained is None:
            return
        if untrained.in_a_row >= self.patience:
            msg = (
                f"none of the last {untrained.in_a_row:,} rollouts of {figures.run_id} can be "
                f"trained on, so the run was stopped; since the last step {untrained}"
            )
            raise NothingTrained(msg)
        if 0 < self.give_up <= untrained.ended:
            msg = (
                f"{untrained.ended:,} rollouts of {figures.run_id} have ended without a step, so "
                f"the run was stopped (give_up of its recipe): {untrained}; what its trainer made "
                "of their groups is in its log"
            )
            raise NothingTrained(msg)

    def _failing(self, figures: RunFigures) -> KeepsFailing:
        failures = figures.failures
        msg = (
            f"the last {figures.failing:,} rollouts of {figures.run_id} all failed, so the run was "
            f"stopped; failed {failures}; the first said: {failures.why()}"
        )
        return KeepsFailing(msg)

    def doing(self, figures: RunFigures) -> str:
        """Describe the current activity of the run."""
        if self.paused:
            return "paused: no rollout begins until `rollcall resume`"
        untrained = figures.untrained
        if untrained is not None and untrained.ended > SAID_AFTER * self.batch > 0:
            return f"training, but {untrained.ended:,} rollouts ended without a step: {untrained}"
        heldout = figures.heldout
        half = [v for v in sorted(heldout.results) if not heldout.complete(v)]
        if half:
            first, end = heldout.plan.seeds
            known = end - first - heldout.missing(half[-1])
            measuring = f"evaluating v{half[-1]}, {known:,} of {end - first:,}"
            return measuring if not figures.steps else f"training, and {measuring}"
        if figures.rollouts:
            return "training"
        missing = [name for name in self.workers if name not in self.ready]
        if missing:
            more = len(missing) - WAITING_NAMED
            others = f" and {more} more" if more > 0 else ""
            return f"waiting for {', '.join(missing[:WAITING_NAMED])}{others} to start"
        return "all workers have started; no rollout has ended yet"

    def elapsed(self) -> str:
        """Return the time that it has been watched."""
        whole = int(time.monotonic() - self.began)
        minutes, seconds = divmod(whole, 60)
        hours, minutes = divmod(minutes, 60)
        return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


def watch_of(folder: RunFolder) -> RunWatch:
    """Return the watch of a run that has not begun. Raises Refused for an unworkable recipe.

    Its patience exceeds the rollouts that an outage can fail at once, those open at its start and
    those requested after it, so a run survives the loss of its model servers for a while.
    """
    rule, plan, learner = folder.rule(), folder.heldout(), folder.learner()
    in_the_air = rule.grant(0, 0, 0) * rule.group_size
    held_out = max(0, plan.seeds[1] - plan.seeds[0])
    return RunWatch(
        learner.steps,
        max(LEAST_PATIENCE, 2 * in_the_air + held_out),
        learner.curation(folder.run_id, folder.policy_id),
        learner.groups.per_step * learner.members,
        folder.recipe.give_up * learner.members,
    )
