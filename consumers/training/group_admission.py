"""Which rollouts a trainer asks for: whole groups, evaluations, and the rest of what was cut off.

Nothing is asked for after the last step, nor before the starting weights are evaluated, but what
evaluates weights.
"""

from dataclasses import dataclass, replace

from consumers.training.continuing import Continuing
from consumers.training.evaluations import Evaluations
from consumers.training.other_policies import OtherPolicies
from consumers.training.training_run import TrainingRun
from producers.curators.curriculum import Curriculum
from producers.submit import Submitter
from schemas.messages import RolloutRequest
from trainer.accounts import Accounts
from trainer.config import LearnerConfig
from trainer.step import Learner


@dataclass(frozen=True, slots=True)
class GroupAdmission:
    """Keeps as many rollouts in the air as the rule of a run says."""

    run: TrainingRun
    config: LearnerConfig
    learner: Learner
    accounts: Accounts
    curriculum: Curriculum
    evaluations: Evaluations
    others: OtherPolicies
    submitter: Submitter
    continuing: Continuing | None

    def stopped(self) -> bool:
        """No further step is taken: all are done, or the goal is reached."""
        return self.evaluations.reached or 0 < self.run.steps <= self.learner.steps_done

    def before_training(self) -> bool:
        """Whether the starting weights are still being evaluated."""
        return self.learner.steps_done == 0 and not self.evaluations.complete(self.learner.version)

    def evaluate_if_due(self) -> None:
        """Ask for the evaluation of the newest weights, once. Raises Unavailable."""
        due = self.evaluations.due(self.learner.steps_done) or self.stopped()
        if due and self.others.all_there():
            self.evaluations.ask(self.learner.version)

    def admit(self) -> int:
        """Publish as many whole groups as the rule grants; return how many."""
        if not self.run.admits or self.stopped() or self.before_training():
            return 0
        if self._interrupting():
            return 0
        if not self.others.all_there():
            return 0
        done, running = self.learner.steps_done, self.accounts.running()
        accepted = done * self.run.rule.batch + self.accounts.taken()
        granted = self.run.rule.grant(done, accepted, running)
        groups = self.others.granted(granted, self.config.fresh_groups, done, running)
        for _ in range(groups):
            draw = self.accounts.next_draw
            group = self.curriculum.next_group(draw, self.learner.version)
            least = self._least_version()
            self.submitter.publish(*(replace(each, min_policy_version=least) for each in group))
            self.published(draw, group)
        return groups

    def published(self, draw: int, group: list[RolloutRequest]) -> None:
        """Note that a draw is in the air."""
        # Where running groups are waited for by it, with the newest version.
        begun_under = self.learner.version if self.config.on_stale == "wait" else None
        self.accounts.published(draw, len(group), begun_under)

    def go_on(self) -> int:
        """Ask for the rest of what was cancelled for the time being; return how many."""
        if self.continuing is None or self.stopped() or self._interrupting():
            return 0
        return self.continuing.go_on(self._least_version())

    def _interrupting(self) -> bool:
        return self.continuing is not None and self.continuing.interrupted_at is not None

    def _least_version(self) -> int:
        """What rollouts are begun with: where no older weights will do, the newest."""
        older_will_do = self.config.max_staleness > 0 or bool(self.run.others)
        # What older weights say after they were trained nobody can score any more.
        return 0 if older_will_do and not self.config.interrupts else self.learner.version
