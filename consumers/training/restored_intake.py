"""Makes the intake as a checkpoint left it, or an empty one."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from rollcall.consumers.training.announcement import Announcements
from rollcall.consumers.training.evaluations import Evaluations
from rollcall.consumers.training.intake import Intake
from rollcall.consumers.training.recorded_groups import EarlierRun
from rollcall.consumers.training.resumption import RunLog
from rollcall.producers.curators.curriculum import Curriculum
from rollcall.trainer.checkpoints.checkpoint import Checkpoint, Ranges
from rollcall.trainer.checkpoints.consumption import Consumption
from rollcall.trainer.config.curation import Curation
from rollcall.trainer.config.learner_config import LearnerConfig
from rollcall.trainer.curation.borrowed_groups import Mark
from rollcall.trainer.curation.borrowed_samples import Reencode
from rollcall.trainer.curation.buffer import Buffer
from rollcall.trainer.curation.group_gate import group_filters, worth_training
from rollcall.trainer.curation.group_ledger import GroupLedger


@dataclass(frozen=True, slots=True)
class IntakeMaker:
    """The parts of an intake that do not depend on the checkpoint."""

    past: RunLog
    config: LearnerConfig
    announcements: Announcements
    curriculum: Curriculum
    ledger: GroupLedger
    evaluations: Evaluations
    reencode: Reencode | None
    clock: Callable[[], float]

    def intake(self, held: Checkpoint | None, abandoned: Ranges) -> Intake:
        """Return the intake at a checkpoint, and load the learner from it.

        Raises Refused if groups of an earlier run are configured and there are none.
        """
        run, learner, log = self.past.run, self.announcements.learner, self.past.log
        curation = replace(
            self.config.curation(run.run_id, run.policy_id, abandoned),
            vocabulary=learner.vocabulary,
            context=learner.context,
            joins=not run.admits,
        )
        scored, marks = self.past.topics.scored, held.consumed if held else ()
        consumption = Consumption(scored, marks, log.topic_id(scored))
        recorded = self._recorded(curation, held.replay.recorded if held else ())
        rule = self.config.replay()
        buffer = Buffer(curation, self.ledger, rule, recorded, self.reencode, self.clock)
        intake = Intake(self.announcements, self.curriculum, buffer, consumption, self.evaluations)
        if held is not None:
            learner.load(held.state)
            intake.restore(held)
            self.past.replay(buffer, held.replay)
        return intake

    def _recorded(self, curation: Curation, mark: Mark) -> EarlierRun | None:
        """Return the groups of an earlier run from the checkpoint's position; None without any.

        Raises Refused if there are none.
        """
        rule, past = self.config.recorded, self.past
        if rule is None:
            return None
        return EarlierRun(
            past.log,
            past.codec,
            past.topics.scored,
            past.run.scoring_id,
            rule,
            curation,
            past.run.starts,
            partial(worth_training, group_filters(curation)),
            mark,
        )
