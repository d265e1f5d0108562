"""The rules that a learner's configuration names, with their options, and what they need."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from schemas.errors import Refused
from schemas.rules import Choice, Chosen, Rule, choose
from trainer.catalogue import (
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
from trainer.completion.waiting import Completion
from trainer.filters.group_filter import Filter
from trainer.objective import Objective
from trainer.rewards import AdvantageRule, Exploration, Shaping
from trainer.samples import LIMITS
from trainer.step_sizes.pace import StepSize
from trainer.tokens import Distil, Loss

if TYPE_CHECKING:
    from trainer.config import LearnerConfig

LOOKS = frozenset({"prox", "ref", "entropy", "norms"})
"""What rules of rewards may need that somebody has to look at."""


@dataclass(frozen=True, slots=True)
class ChosenRules:
    """Each is looked up when it is asked for, and raises Refused where it is none.

    A configuration has asked for all of them when it was made.
    """

    config: "LearnerConfig"

    @property
    def advantage(self) -> Chosen[AdvantageRule]:
        """What turns rewards into advantages."""
        return choose("advantage", self.config.advantage, ADVANTAGES)

    @property
    def loss(self) -> Chosen[Loss]:
        """The loss with its options, however they are spelled."""
        config = self.config
        choice = Choice.of("loss", config.loss)
        dual = config.clip_dual or None
        spelled = {"low": config.clip_low, "high": config.clip_high, "dual": dual}
        flat = {key: value for key, value in spelled.items() if value is not None}
        twice = sorted(flat.keys() & dict(choice.options))
        if twice:
            msg = (
                f"clip_{twice[0]} and {twice[0]!r} of the table of the loss are the same; give one"
            )
            raise Refused(msg)
        merged = Choice(choice.name, tuple(sorted((dict(choice.options) | flat).items())))
        return choose("loss", merged, LOSSES)

    @property
    def distil(self) -> Chosen[Distil]:
        """What a teacher adds to advantages."""
        return choose("distill", self.config.distill, DISTILS)

    @property
    def objective(self) -> Objective:
        """What is minimised for each token. Raises Refused for rules that do not fit together."""
        return Objective(
            self.loss,
            self.distil,
            choose("old_logprobs", self.config.old_logprobs, OLDS),
            choose("correction", self.config.correction, CORRECTIONS),
            choose("kl", self.config.kl, KLS),
        )

    @property
    def step_size(self) -> Chosen[StepSize]:
        """What a step's learning rate is multiplied by."""
        return choose("step_size", self.config.step_size, STEP_SIZES)

    @property
    def exploration(self) -> Chosen[Exploration]:
        """What gives each trajectory's entropy its weight."""
        return choose("exploration", self.config.exploration, EXPLORATIONS)

    @property
    def shaping(self) -> list[Chosen[Shaping]]:
        """What is done to totals, in order."""
        return [choose("shaping", each, SHAPINGS) for each in self.config.shaping]

    @property
    def filters(self) -> list[Chosen[Filter]]:
        return [choose("filters", each, FILTERS) for each in self.config.filters]

    @property
    def turn_filters(self) -> list[Chosen[Filter]]:
        """Filters that choose among the turns of a batch; the others choose among groups."""
        return [each for each in self.filters if each.needs("entropy")]

    @property
    def completion(self) -> Rule[Completion]:
        """What says that a batch is whole."""
        return choose("batch", self.config.batch, COMPLETIONS).rule

    @property
    def teacher(self) -> str:
        """What the scorer's name begins with whose token scores are needed; empty for none."""
        chosen = self.distil
        return str(getattr(chosen.options, "scorer", "")) if chosen.needs("teacher") else ""

    @property
    def looks(self) -> frozenset[str]:
        """What some rule has to know of a batch's tokens before its gradient."""
        rules = [self.step_size, self.advantage, self.exploration, *self.turn_filters]
        heard = {"prox"} if self.config.share else set[str]()
        return self.objective.needs.union(heard, *(rule.everything_needed for rule in rules))

    @property
    def values_look(self) -> bool:
        """Whether advantages or bonuses wait for a look at the tokens of the whole batch."""
        return any(rule.everything_needed & LOOKS for rule in (self.advantage, self.exploration))

    @property
    def reference(self) -> str:
        """The directory of the frozen reference; empty for what the policy began as."""
        return next(iter(self.references), "")

    @property
    def references(self) -> set[str]:
        """Directories that rules name which look at a reference."""
        rules = (self.objective.kl, self.advantage)
        return {getattr(each.options, "directory", "") for each in rules if each.needs("ref")}

    @property
    def admitted_limits(self) -> frozenset[str]:
        """Ends at a limit that some shaping rule says the worth of."""
        told = any(rule.needs("limits") for rule in self.shaping)
        return LIMITS if told else frozenset()
