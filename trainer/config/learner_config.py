"""The configuration of a learner: the table `[learner]` of a recipe.

Values that cannot work are refused here, by key and value, before a model is loaded.
"""

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Self

from rollcall.schemas import names
from rollcall.schemas.messages import UNFINISHED
from rollcall.schemas.rules import Need, RuleChoice, choose
from rollcall.trainer.config.chosen_rules import DerivedValues
from rollcall.trainer.config.curation import Curation
from rollcall.trainer.config.fitting import require_fitting, require_own_aggregate
from rollcall.trainer.config.learner_bounds import require_bounds
from rollcall.trainer.config.learning_digest import learning_digest
from rollcall.trainer.config.tables import Lora, Recorded, Share
from rollcall.trainer.config.value_types import require_types
from rollcall.trainer.rules.catalogue import KINDS
from rollcall.trainer.rules.schedules import SCHEDULES


@dataclass(frozen=True, slots=True)
class LearnerConfig(DerivedValues):
    """The checked values of `[learner]`; one that cannot work raises Refused."""

    def __post_init__(self) -> None:
        require_bounds(self)
        require_fitting(self)
        self.curation("", "")

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Self:
        """From a configuration file's section; a key that is none is refused. Raises Refused."""
        known = [field.name for field in dataclasses.fields(cls)]
        for key in values:
            if key not in known:
                raise names.unknown_name("key of the learner", key, known)
        given = {key: _written(key, value) for key, value in values.items()}
        require_types(cls, given, KINDS)
        made = cls(**given)  # type: ignore[arg-type]
        if "aggregate" not in given:
            require_own_aggregate(made)
        return made

    def curation(
        self, run_id: str, policy_id: str, abandoned: tuple[tuple[int, int], ...] = ()
    ) -> Curation:
        """Return the rules by which a buffer before this learner admits rollouts."""
        return Curation(
            run_id,
            policy_id,
            max_staleness=self.max_staleness,
            missing=self.missing,
            redundancy=self.redundancy,
            order=self.order,
            continues=UNFINISHED if self.cuts_off else "",
            retention=self.retention,
            on_stale=self.on_stale,
            stale_wait_s=self.stale_wait_s,
            stale_wait_steps=self.stale_wait_steps,
            filters=self.filters,
            batch=self.batch,
            needs_group=self.rules.advantage.needs(Need.GROUP),
            temperature=self.temperature,
            capacity_groups=self.capacity_groups,
            abandoned=abandoned,
            admits_limits=self.rules.admitted_limits,
            teacher=self.rules.teacher,
            recorded=self.recorded,
            share=self.share,
        )

    def lr_at(self, done: int) -> float:
        factor = choose("schedule", self.schedule, SCHEDULES).rule.function
        return self.lr * factor(done, self.steps)

    def scoring_versions(self, version: int) -> range:
        """Versions whose weights may have to score tokens once `version` is made."""
        kept = self.max_staleness + 1 if self.rules.objective.old.needs(Need.SNAPSHOT) else 0
        return range(max(version + 1 - kept, 0), version + 1)

    def digest(self) -> str:
        """sha256 over the values that decide what is learned, for the checkpoint."""
        return learning_digest(self)


TABLES: Mapping[str, Callable[[Mapping[str, Any]], object]] = {
    "lora": Lora.of, "recorded": Recorded.of, "share": Share.of,
}  # fmt: skip
"""Keys that are tables of their own, and no rules."""


def _written(key: str, value: object) -> object:
    """A value of a configuration file: tables are choices, lists do not change."""
    if key in TABLES and isinstance(value, Mapping):
        return TABLES[key](value)
    if isinstance(value, list):
        return tuple(_written(key, each) for each in value)
    return RuleChoice.of(key, value) if isinstance(value, Mapping) else value
