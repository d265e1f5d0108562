"""Where scored trajectories go, as a checkpoint left it; empty where there is none."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from consumers.training.announcement import Announcements
from consumers.training.evaluations import Evaluations
from consumers.training.intake import Intake
from consumers.training.recorded_groups import EarlierRun
from consumers.training.resumption import RunLog
from producers.curators.curriculum import Curriculum
from trainer.accounts import Accounts
from trainer.checkpoint import Checkpoint, Ranges
from trainer.config import LearnerConfig
from trainer.consumption import Consumption
from trainer.curation import Buffer
from trainer.foreign_groups import Mark
from trainer.foreign_samples import Retell
from trainer.group_gate import group_filters, worth_training
from trainer.samples import Curation


@dataclass(frozen=True, slots=True)
class IntakeMaker:
    """What an intake is made of, whatever the checkpoint."""

    past: RunLog
    config: LearnerConfig
    words: Announcements
    curriculum: Curriculum
    accounts: Accounts
    evaluations: Evaluations
    retell: Retell | None
    clock: Callable[[], float]

    def intake(self, held: Checkpoint | None, abandoned: Ranges) -> Intake:
        """The intake where a checkpoint stood; the learner is loaded with it.

        Raises Refused where groups of an earlier run are wanted and there are none.
        """
        run, learner, log = self.past.run, self.words.learner, self.past.log
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
        buffer = Buffer(curation, self.accounts, rule, recorded, self.retell, self.clock)
        intake = Intake(self.words, self.curriculum, buffer, consumption, self.evaluations)
        if held is not None:
            learner.load(held.state)
            intake.restore(held)
            self.past.replay(buffer, held.replay)
        return intake

    def _recorded(self, curation: Curation, mark: Mark) -> EarlierRun | None:
        """The groups of an earlier run, from where a checkpoint stood; None where none are named.

        Raises Refused where there are none.
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
