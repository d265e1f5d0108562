"""Admission of rollouts by a trainer: whole groups, evaluations, continuations of cancelled ones.

After the last step, and before the starting weights are evaluated, only evaluations are requested.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from rollcall.consumers.training.cancels import REDUNDANT, Cancels
from rollcall.consumers.training.evaluations import Evaluations
from rollcall.consumers.training.other_policies import OtherPolicies
from rollcall.consumers.training.resumption import Resumption
from rollcall.consumers.training.rollout_continuation import RolloutContinuation
from rollcall.consumers.training.training_run import TrainingRun
from rollcall.producers.curators.curriculum import Curriculum
from rollcall.producers.submit import Submitter
from rollcall.schemas.messages import UNFINISHED, RolloutRequest
from rollcall.trainer.config.learner_config import LearnerConfig
from rollcall.trainer.curation.group_ledger import GroupLedger
from rollcall.trainer.learner.step import Learner


@dataclass(eq=False)
class GroupAdmission:
    """Keeps as many rollouts in flight as the admission rule of a run allows."""

    run: TrainingRun
    config: LearnerConfig
    learner: Learner
    ledger: GroupLedger
    curriculum: Curriculum
    evaluations: Evaluations
    others: OtherPolicies
    submitter: Submitter
    cancels: Cancels
    continuing: RolloutContinuation | None = None
    """Cancels running rollouts when a batch is complete; None if the run cancels none."""

    def resume(self, known: Resumption, cut_off: Iterable[str]) -> None:
        """Continue what an earlier trainer has begun: complete its groups, repeat its cancels."""
        for draw in range(self.ledger.next_draw, known.highest_draw + 1):
            self.published(draw, self.curriculum.group(draw))
        for draw, rollout_id in known.continued:
            self.ledger.record_resumed(draw, rollout_id)
        if self.run.admits:
            self.submitter.publish(*known.unfinished)
            self.cancels.ask(self.ledger.losers(), REDUNDANT)
            self.cancels.ask(cut_off, UNFINISHED)

    def cancel_redundant(self, rollout_ids: Iterable[str]) -> None:
        """Ask for rollouts to end whose groups are complete without them."""
        if self.run.admits:
            self.cancels.ask(rollout_ids, REDUNDANT)

    def stopped(self) -> bool:
        """Return True if no further step is taken: all are done, or the goal is reached."""
        return self.evaluations.reached or 0 < self.run.steps <= self.learner.steps_done

    def before_training(self) -> bool:
        """Return True while the starting weights are being evaluated."""
        return self.learner.steps_done == 0 and not self.evaluations.complete(self.learner.version)

    def evaluate_if_due(self) -> None:
        """Request the evaluation of the newest weights, once. Raises Unavailable."""
        due = self.evaluations.due(self.learner.steps_done) or self.stopped()
        if due and self.others.all_there():
            self.evaluations.ask(self.learner.version)

    def admit(self) -> int:
        """Publish as many whole groups as the rule grants; return their number."""
        if not self.run.admits or self.stopped() or self.before_training():
            return 0
        if self._interrupting():
            return 0
        if not self.others.all_there():
            return 0
        done, running = self.learner.steps_done, self.ledger.running()
        accepted = done * self.run.rule.batch + self.ledger.taken()
        granted = self.run.rule.grant(done, accepted, running)
        groups = self.others.granted(granted, self.config.fresh_groups, done, running)
        for number in range(groups):
            started = accepted + running + number * self.run.rule.group_size
            self._publish(self._least_version(self.run.rule.batches_ahead(done, started)))
        return groups

    def _publish(self, least: int) -> None:
        draw = self.ledger.next_draw
        group = self.curriculum.next_group(draw, self.learner.version)
        self.submitter.publish(*(replace(each, min_policy_version=least) for each in group))
        self.published(draw, group)

    def published(self, draw: int, group: list[RolloutRequest]) -> None:
        """Note that a draw is in flight."""
        # With "wait", a step waits for running groups by the version under which they began.
        begun_under = self.learner.version if self.config.staleness.on_stale == "wait" else None
        self.ledger.published(draw, len(group), begun_under)

    def go_on(self) -> int:
        """Request the continuations of cancelled rollouts; return their number."""
        if self.continuing is None or self.stopped() or self._interrupting():
            return 0
        return self.continuing.go_on(self._least_version())

    def _interrupting(self) -> bool:
        return self.continuing is not None and self.continuing.interrupted_at is not None

    def _least_version(self, ahead: int = 0) -> int:
        """Return the lowest version for rollouts that are trained on after `ahead` further batches.

        Weights that will be too stale by then are excluded: a server that has not loaded newer ones
        would only produce rollouts that are dropped.
        """
        newest = self.learner.version
        if self.config.interrupts:
            return newest  # tokens of older weights cannot be scored once these are trained on
        oldest = self.config.staleness.bound
        if self.run.others or (oldest and self.config.staleness.on_stale != "drop"):
            return 0
        return max(0, newest - max(0, oldest - ahead))
