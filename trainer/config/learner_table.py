"""The table `[learner]` of a recipe: its keys, and the reading of them.

A key of a table below it may also be written without that table, under its name in `FLAT`.
"""

import re
from collections.abc import Mapping
from typing import Annotated, Any, Self

from pydantic import ModelWrapValidatorHandler, ValidationError, model_validator
from pydantic_core import ErrorDetails

from rollcall.schemas.errors import Refused
from rollcall.schemas.names import nearest
from rollcall.schemas.rules import RuleChoice
from rollcall.schemas.strict_table import StrictTable, unknown_key
from rollcall.trainer.config.tables import (
    Computation,
    Groups,
    Lora,
    Optimiser,
    Recorded,
    ReplayRule,
    Saving,
    Share,
    Staleness,
)
from rollcall.trainer.config.value_types import (
    RULE,
    Count,
    Natural,
    NotNegative,
    RuleName,
    Switch,
    Whole,
    number,
)


class LearnerTable(StrictTable):
    """The values of `[learner]`, with the rules by name; one of a wrong type raises Refused."""

    advantage: RuleName = "batch_normalised"
    loss: RuleName = "clip_higher"
    exploration: RuleName = "even"
    """The rule that weights the entropy of each sequence; `entropy` is the weight of most."""
    shaping: tuple[RuleName, ...] = ()
    """The rules that change total rewards before advantages are computed, in order."""
    clip_low: Annotated[float, number(lambda x: 0 <= x <= 1, "give a number in [0, 1]")] | None = (
        None
    )
    """The options `low`, `high` and `dual` of a loss that clips, as they were first spelled."""
    clip_high: NotNegative | None = None
    clip_dual: Annotated[
        float, number(lambda x: x == 0 or x > 1, "give 0 (off) or a number above 1, such as 3")
    ] = 0.0
    """0 is off."""
    aggregate: Annotated[str, RULE] = "token_mean"
    """A configuration with a rule whose source has another one names it, or is refused."""
    aggregate_norm: Natural = 0
    """The run's maximum of new tokens, for `seq_mean_token_sum_norm`."""
    entropy: NotNegative = 0.01
    """The weight of the entropy bonus."""
    distill: RuleName = "none"
    """The rule that adds a teacher's token scores to the advantage."""
    old_logprobs: RuleName = "none"
    """The source of the trainer's own log-probabilities at sampling time."""
    correction: RuleName = "none"
    """The rule that weights a token whose log-probability differs between engine and trainer."""
    kl: RuleName = "none"
    """The penalty for leaving a frozen reference policy."""
    step_size: RuleName = "scheduled"
    """The rule that scales a step relative to the schedule."""
    batch: RuleName = "groups"
    """The rule that completes a batch: `groups_per_step` groups, or a number of tokens
    (`token_budget`)."""
    filters: tuple[RuleName, ...] = ("none",)
    steps: Count = 120
    seed: Whole = 0
    temperature: Annotated[
        float, number(lambda x: x > 0, "greedy samples teach nothing; give a number above 0")
    ] = 1.0
    """The sampling temperature; the trainer divides its logits by it."""
    stream: Switch = False
    """True: gradients are accumulated as groups complete, and applied when the batch is
    complete."""
    optimiser: Optimiser = Optimiser()
    groups: Groups = Groups()
    staleness: Staleness = Staleness()
    replay: ReplayRule = ReplayRule()
    recorded: Recorded | None = None
    """A share of a batch's groups that an earlier run has recorded."""
    share: Share | None = None
    """A share of a batch's groups that other runs are trained on, as text."""
    computation: Computation = Computation()
    saving: Saving = Saving()
    lora: Lora | None = None
    """`[policy.lora]` of the recipe: adapters are trained in place of the weights."""
    adapter_alone: Switch = False
    """True: the adapters are published and saved, not the merged weights; a recipe says so by
    `[policy] weights = "adapter"`."""

    @model_validator(mode="wrap")
    @classmethod
    def _read(cls, values: Any, check: ModelWrapValidatorHandler[Self]) -> Self:
        """Read keys without their table too; errors are Refused and name keys as written."""
        if not isinstance(values, Mapping):
            return check(values)
        try:
            return check(_in_tables(values))
        except ValidationError as error:
            complaints = (_complaint(cls, item, values) for item in error.errors())
            raise Refused("; ".join(complaints)) from error

    def flat(self) -> dict[str, Any]:
        """Return all values, by their keys without tables."""
        nested = {name: getattr(getattr(self, table), key) for name, (table, key) in FLAT.items()}
        return {
            key: getattr(self, key) for key in type(self).model_fields if key not in TABLES
        } | nested

    def given(self) -> dict[str, Any]:
        """Return the values that were given, as a recipe writes them without tables."""
        names = self.model_fields_set.union(
            name
            for name, (table, key) in FLAT.items()
            if key in getattr(self, table).model_fields_set
        )
        return {name: plain(value) for name, value in self.flat().items() if name in names}


TABLES = {
    key: type(field.default)
    for key, field in LearnerTable.model_fields.items()
    if isinstance(field.default, StrictTable)
}
FLAT = {
    next((name for name in field.metadata if isinstance(name, str)), key): (table, key)
    for table, keys in TABLES.items()
    for key, field in keys.model_fields.items()
}
"""By its name in `[learner]` itself, the table and the key of a value."""
FLAT_NAMES = {place: name for name, place in FLAT.items()}


def plain(value: object) -> object:
    """Return a value as a recipe writes it."""
    if isinstance(value, tuple):
        return tuple(plain(each) for each in value)
    if isinstance(value, StrictTable):
        return value.model_dump()
    return value.plain() if isinstance(value, RuleChoice) else value


def _in_tables(values: Mapping[str, Any]) -> dict[str, Any]:
    """Move keys without their table into it. Raises Refused for a key given in both ways."""
    moved = {key: value for key, value in values.items() if key not in FLAT}
    for flat in values.keys() & FLAT.keys():
        table, key = FLAT[flat]
        inside = moved.get(table, {})
        if isinstance(inside, StrictTable):
            inside = {name: getattr(inside, name) for name in inside.model_fields_set}
        if not isinstance(inside, Mapping):
            continue  # the table itself is refused
        if key in inside:
            msg = f"{flat} and {table}.{key} are the same; give one"
            raise Refused(msg)
        moved[table] = {**inside, key: values[flat]}
    return moved


def _complaint(model: type[StrictTable], item: ErrorDetails, values: Mapping[str, Any]) -> str:
    """Return the complaint about one value, with its key as written and a remedy."""
    path = [str(part) for part in item["loc"] if isinstance(part, str)]
    flat = FLAT_NAMES.get((path[0], path[-1]), "")
    key, found = flat if flat in values else ".".join(path), item["input"]
    if item["type"] == "extra_forbidden":
        return str(unknown_key(model, "key of the learner", path, FLAT))
    if item["type"] == "literal_error" and isinstance(found, str):
        known = re.findall("'(.*?)'", item["ctx"]["expected"])
        if near := nearest(found, known):
            return f"unknown {key} {found!r}; did you mean {near!r}?"
        return f"{key} is {found!r}; use one of {', '.join(known)}"
    holds = "has" if len(path) < len(item["loc"]) else "is"
    return f"{key} {holds} {_shown(found)}; {REMEDIES.get(item['type'], item['msg'])}"


REMEDIES = {
    "bool_type": "give true or false",
    "literal_error": "give a name",
    "model_type": "give a table",
    "string_type": "give a name",
    "tuple_type": 'give a list, such as ["NAME"]',
}


def _shown(value: object) -> str:
    """Return a value as written, shortened to one line."""
    if isinstance(value, Mapping) and isinstance(value.get("name"), str):
        return f"a table with name = {value['name']!r}"
    return repr(list(value) if isinstance(value, tuple) else value)[:200]
