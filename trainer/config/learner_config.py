"""The configuration of a learner: the table `[learner]` of a recipe, with its rules looked up.

Values that cannot work are refused here, by key and value, before a model is loaded.
"""

import hashlib
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Self

import orjson
from pydantic import model_validator

from rollcall.schemas.errors import Refused
from rollcall.schemas.messages import UNFINISHED
from rollcall.schemas.rules import Need, choose
from rollcall.schemas.strict_table import StrictTable
from rollcall.trainer.config.chosen_rules import DerivedValues
from rollcall.trainer.config.curation import Curation
from rollcall.trainer.config.fitting import misfits, other_aggregates
from rollcall.trainer.config.learner_table import plain
from rollcall.trainer.rules.catalogue import KINDS
from rollcall.trainer.rules.schedules import SCHEDULES

FIRST = frozenset({
    "advantage", "loss", "clip_low", "clip_high", "clip_dual", "aggregate", "aggregate_norm",
    "entropy", "lr", "schedule", "steps", "betas", "weight_decay", "max_grad_norm", "max_staleness",
    "groups_per_step", "group_size", "capacity_groups", "filters", "missing", "on_stale",
    "temperature", "seed", "micro_batch_tokens", "max_skipped",
})  # fmt: skip
"""Settings that are always in the digest, also with their defaults."""

FREE = frozenset({
    "checkpoint_keep_every", "gradient_checkpointing", "ranks", "save", "announce", "adapter_alone",
})  # fmt: skip
"""Settings that do not affect what is learned, so they may change between checkpoints."""


class LearnerConfig(DerivedValues):
    """The checked values of `[learner]`; one that cannot work raises Refused."""

    if TYPE_CHECKING:  # keys of its tables are accepted without them

        def __init__(self, **values: Any) -> None: ...

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Self:
        """Build it from a recipe's table, in which a rule's own aggregate must be named."""
        made = cls(**values)
        if "aggregate" not in values:
            _refuse_first(other_aggregates(made))
        return made

    @model_validator(mode="after")
    def _work_together(self) -> Self:
        flat = self.flat()
        for kind, rules in KINDS.items():
            value = flat[kind]
            for each in value if isinstance(value, tuple) else (value,):
                choose(kind, each, rules)
        _refuse_first(misfits(self))
        return self

    def curation(
        self, run_id: str, policy_id: str, abandoned: tuple[tuple[int, int], ...] = ()
    ) -> Curation:
        """Return the rules by which a buffer before this learner admits rollouts."""
        return Curation(
            run_id,
            policy_id,
            groups=self.groups,
            staleness=self.staleness,
            continues=UNFINISHED if self.cuts_off else "",
            filters=self.filters,
            batch=self.batch,
            needs_group=self.rules.advantage.needs(Need.GROUP),
            temperature=self.temperature,
            abandoned=abandoned,
            admits_limits=self.rules.admitted_limits,
            teacher=self.rules.teacher,
            recorded=self.recorded,
            share=self.share,
        )

    def lr_at(self, done: int) -> float:
        """Return the learning rate after that many steps."""
        optimiser = self.optimiser
        factor = choose("schedule", optimiser.schedule, SCHEDULES).rule.function
        return optimiser.lr * factor(done, self.steps)

    def scoring_versions(self, version: int) -> range:
        """Return the versions whose weights may have to score tokens once `version` is made."""
        kept = self.staleness.bound + 1 if self.rules.objective.old.needs(Need.SNAPSHOT) else 0
        return range(max(version + 1 - kept, 0), version + 1)

    def digest(self) -> str:
        """Return the sha256, in hexadecimal, of the values that affect what is learned.

        A setting added later counts only if it is not its default, so that checkpoints from before
        it stay usable, and new ones by an older trainer. Therefore such a default must never
        change.
        """
        defaults = type(self)().flat()
        values = {
            key: _hashed(value)
            for key, value in self.flat().items()
            if key not in FREE and (key in FIRST or value != defaults[key])
        }
        return hashlib.sha256(orjson.dumps(values, option=orjson.OPT_SORT_KEYS)).hexdigest()


def _refuse_first(reasons: Iterable[str]) -> None:
    for reason in reasons:
        raise Refused(reason)


def _hashed(value: object) -> object:
    """Return a value as it is hashed: the keys of a table in their order, all others sorted."""
    if isinstance(value, StrictTable):
        return orjson.Fragment(orjson.dumps(plain(value)))
    return plain(value)
