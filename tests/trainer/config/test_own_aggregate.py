"""A rule with an aggregate of its own is not trained under another one by accident."""

from typing import Any

import pytest

from rollcall.schemas.errors import Refused
from rollcall.trainer.config.fitting import COUNTS_TOKENS
from rollcall.trainer.config.learner_config import LearnerConfig
from rollcall.trainer.rules.aggregates import AGGREGATES
from rollcall.trainer.rules.catalogue import KINDS

OWN = [(kind, name) for kind in KINDS for name, rule in KINDS[kind].items() if rule.aggregate]


def test_gspo_and_dr_grpo_declare_their_own_aggregate() -> None:
    assert {("loss", "gspo"), ("advantage", "dr_grpo")} <= set(OWN)
    assert all(KINDS[kind][name].aggregate in AGGREGATES for kind, name in OWN)


@pytest.mark.parametrize("table", [True, False])
@pytest.mark.parametrize(("kind", "name"), OWN)
def test_a_recipe_without_the_required_aggregate_is_refused_with_the_fix(
    kind: str, name: str, table: bool
) -> None:
    value: Any = {"name": name} if table else name
    own = KINDS[kind][name].aggregate

    with pytest.raises(Refused, match=rf"{kind} '{name}' .* write aggregate = '{own}'") as refused:
        LearnerConfig.of({kind: value})

    assert "\n" not in str(refused.value)
    assert LearnerConfig.of({kind: value, "aggregate": own, "aggregate_norm": 9}).aggregate == own


@pytest.mark.parametrize("aggregate", sorted(COUNTS_TOKENS))
@pytest.mark.parametrize(("kind", "name"), OWN)
def test_a_recipe_that_names_an_aggregate_is_obeyed(kind: str, name: str, aggregate: str) -> None:
    made = LearnerConfig.of({kind: name, "aggregate": aggregate, "aggregate_norm": 9})

    assert made.aggregate == aggregate


@pytest.mark.parametrize("kind", ["loss", "advantage"])
def test_no_other_rule_requires_an_aggregate(kind: str) -> None:
    others = {name for name in KINDS[kind] if (kind, name) not in OWN}

    for name in others:
        rules = {kind: name, "old_logprobs": "recompute"}
        assert LearnerConfig.of(rules).aggregate == "token_mean"
