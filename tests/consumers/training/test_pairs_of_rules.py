"""Any two rules of different kinds train together, or are refused in one line that says why.

A sample of the pairs, two steps each: the whole takes half an hour.
"""

from itertools import combinations
from pathlib import Path
from random import Random

import pytest

from rollcall.producers.curators.curators import CURATORS
from rollcall.schemas.errors import Refused
from rollcall.trainer.rules.catalogue import KINDS
from tests.support.tiers import cases
from tests.support.tiny_run import RECIPE, World

RULES = [(kind, name) for kind, rules in {**KINDS, "curator": CURATORS}.items() for name in rules]
PAIRS = [pair for pair in combinations(RULES, 2) if pair[0][0] != pair[1][0]]
SAMPLE = Random(14).sample(PAIRS, 16)
LISTS = ("filters", "shaping")
SMALL = {
    "steps = 4": "steps = 2\naggregate_norm = 4", "n_embd = 16": "n_embd = 4",
    "n_head = 2": "n_head = 1", "group_size = 4": "group_size = 3", "every = 2": "every = 0",
}  # fmt: skip

Rules = tuple[tuple[str, str], ...]


def text_of(pair: Rules) -> str:
    """The tiny recipe with both, and with the further options that one of them needs."""
    text = RECIPE
    for ours, theirs in SMALL.items():
        text = text.replace(ours, theirs)
    chosen = dict(pair)
    if "correction" in chosen:
        chosen.setdefault("old_logprobs", "recompute")
    if chosen.get("old_logprobs") == "interrupt":
        text = text.replace("[learner]", "[learner]\nover_provision = 2.0")
    if "curator" in chosen:
        text = f'curator = "{chosen.pop("curator")}"\n{text}'
    for kind, name in chosen.items():
        value = f'["{name}"]' if kind in LISTS else f'"{name}"'
        text = text.replace("[learner]", f"[learner]\n{kind} = {value}")
    return text


@pytest.mark.parametrize(
    "pair",
    cases([(pair,) for pair in SAMPLE], 4),
    ids=lambda pair: "-".join(name for _, name in pair),
)
def test_a_pair_of_rules_trains_or_is_refused_in_one_line(pair: Rules, tmp_path: Path) -> None:
    try:
        world = World(tmp_path, text_of(pair))
        trainer = world.trainer()
    except Refused as error:
        said = str(error)
        assert "\n" not in said
        assert any(name in said for _, name in pair) or "scorers" in said
        return

    world.train(trainer)

    assert [step.step for step in world.steps()] == [1, 2]
    assert not any(step.metrics["skipped"] for step in world.steps())
    world.close()
