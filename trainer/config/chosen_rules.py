"""The rules that a learner's values name, with their options and needs."""

from dataclasses import dataclass

from rollcall.schemas.errors import Refused
from rollcall.schemas.rules import ChosenRule, Need, Rule, RuleChoice, choose
from rollcall.trainer.config.learner_table import LearnerTable
from rollcall.trainer.rules.catalogue import (
    ADVANTAGES,
    COMPLETIONS,
    CORRECTIONS,
    DISTILS,
    EXPLORATIONS,
    FILTERS,
    KLS,
    LOSSES,
    OLDS,
    SHAPINGS,
    STEP_SIZES,
)
from rollcall.trainer.rules.completion import Completion
from rollcall.trainer.rules.filters import Filter
from rollcall.trainer.rules.objective import Objective
from rollcall.trainer.rules.rewards import AdvantageRule, Exploration, Shaping
from rollcall.trainer.rules.samples import LIMITS
from rollcall.trainer.rules.step_sizes import StepSize
from rollcall.trainer.rules.tokens import Distil, Loss

SCORES = frozenset({Need.PROX, Need.REF, Need.ENTROPY, Need.NORMS})
"""The needs of reward rules that require an extra pass over the tokens."""


@dataclass(frozen=True, slots=True)
class ChosenRules:
    """The chosen rules. Each is looked up when it is read, and raises Refused if it is unknown.

    A configuration looks all of them up when it is created, so it is validated then.
    """

    values: LearnerTable

    @property
    def advantage(self) -> ChosenRule[AdvantageRule]:
        """The rule that turns rewards into advantages."""
        return choose("advantage", self.values.advantage, ADVANTAGES)

    @property
    def loss(self) -> ChosenRule[Loss]:
        """The loss, with options from its table and from the flat keys `clip_*`."""
        values = self.values
        choice = RuleChoice.of("loss", values.loss)
        dual = values.clip_dual or None
        spelled = {"low": values.clip_low, "high": values.clip_high, "dual": dual}
        flat = {key: value for key, value in spelled.items() if value is not None}
        twice = sorted(flat.keys() & dict(choice.options))
        if twice:
            msg = (
                f"clip_{twice[0]} and {twice[0]!r} of the table of the loss are the same; give one"
            )
            raise Refused(msg)
        merged = RuleChoice(choice.name, tuple(sorted((dict(choice.options) | flat).items())))
        return choose("loss", merged, LOSSES)

    @property
    def distil(self) -> ChosenRule[Distil]:
        """The rule that adds a teacher's term to advantages."""
        return choose("distill", self.values.distill, DISTILS)

    @property
    def objective(self) -> Objective:
        """The objective of each token. Raises Refused for incompatible rules."""
        return Objective(
            self.loss,
            self.distil,
            choose("old_logprobs", self.values.old_logprobs, OLDS),
            choose("correction", self.values.correction, CORRECTIONS),
            choose("kl", self.values.kl, KLS),
        )

    @property
    def step_size(self) -> ChosenRule[StepSize]:
        """The rule for the factor of a step's learning rate."""
        return choose("step_size", self.values.step_size, STEP_SIZES)

    @property
    def exploration(self) -> ChosenRule[Exploration]:
        """The rule for the entropy coefficient of each trajectory."""
        return choose("exploration", self.values.exploration, EXPLORATIONS)

    @property
    def shaping(self) -> list[ChosenRule[Shaping]]:
        """The rules that change totals, in order."""
        return [choose("shaping", each, SHAPINGS) for each in self.values.shaping]

    @property
    def filters(self) -> list[ChosenRule[Filter]]:
        return [choose("filters", each, FILTERS) for each in self.values.filters]

    @property
    def turn_filters(self) -> list[ChosenRule[Filter]]:
        """The filters that select turns of a batch; the others select groups."""
        return [each for each in self.filters if each.needs(Need.ENTROPY)]

    @property
    def completion(self) -> Rule[Completion]:
        """The rule that decides when a batch is complete."""
        return choose("batch", self.values.batch, COMPLETIONS).rule

    @property
    def teacher(self) -> str:
        """The prefix of the name of the scorer whose token scores are needed; empty for none."""
        chosen = self.distil
        return str(getattr(chosen.options, "scorer", "")) if chosen.needs(Need.TEACHER) else ""

    @property
    def needed_scores(self) -> frozenset[Need]:
        """The quantities that rules need of a batch's tokens before its gradient."""
        rules = [self.step_size, self.advantage, self.exploration, *self.turn_filters]
        shared = {Need.PROX} if self.values.share else set[Need]()
        return self.objective.needs.union(shared, *(rule.everything_needed for rule in rules))

    @property
    def rewards_need_scores(self) -> bool:
        """True if advantages or bonuses need an extra pass over the tokens of the whole batch."""
        return any(rule.everything_needed & SCORES for rule in (self.advantage, self.exploration))

    @property
    def reference(self) -> str:
        """The directory of the frozen reference; empty for the initial policy."""
        return next(iter(self.references), "")

    @property
    def references(self) -> set[str]:
        """The directories named by rules that use a reference."""
        rules = (self.objective.kl, self.advantage)
        return {getattr(each.options, "directory", "") for each in rules if each.needs(Need.REF)}

    @property
    def admitted_limits(self) -> frozenset[str]:
        """The limits at which a rollout may end and still be trained on, if shaping values it."""
        valued = any(rule.needs(Need.LIMITS) for rule in self.shaping)
        return LIMITS if valued else frozenset()


class DerivedValues(LearnerTable):
    """The values, and what follows from them; rules are not checked yet."""

    @property
    def rules(self) -> ChosenRules:
        """The rules that the values name."""
        return ChosenRules(self)

    @property
    def cuts_off(self) -> bool:
        """True if rollouts that run when a batch is complete are cancelled and resumed."""
        return self.groups.over_provision > 1 or self.refills

    @property
    def interrupts(self) -> bool:
        """True if a step waits for the rollouts that it cuts off, so that they can be scored."""
        return self.rules.objective.old.needs(Need.NOTED)

    @property
    def refills(self) -> bool:
        """True if the number of rollouts in flight is kept constant."""
        return Need.CUT_OFF in self.rules.completion.needs

    @property
    def fresh_groups(self) -> int:
        """The number of groups of a step that are trained on for the first time."""
        return self.replay.fresh(self.groups.per_step)

    @property
    def members(self) -> int:
        """The number of rollouts that are started for a group."""
        return self.groups.size + self.groups.redundancy
