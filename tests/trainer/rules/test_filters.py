"""The rules that decide about groups and turns.

Golden values: the design's page on algorithms, section 6.
"""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from rollcall.schemas.rules import choose
from rollcall.trainer.rules.catalogue import FILTERS
from rollcall.trainer.rules.samples import Sample
from tests.support.golden import golden
from tests.support.scored_trajectories import sample, scored


def group(*rewards: float) -> list[Sample]:
    one = sample(scored("r"))
    return [replace(one, reward=reward) for reward in rewards]


@golden("filters", "zero_variance")
@pytest.mark.parametrize(("p", "kept"), [(0.5, 0.992188), (0.05, 0.336580)])
def test_a_group_of_eight_is_kept_at_the_published_rate(p: float, kept: float) -> None:
    keep = choose("filters", "zero_variance", FILTERS)

    chance = sum(
        p ** sum(outcome) * (1 - p) ** (8 - sum(outcome))
        for outcome in product((0, 1), repeat=8)
        if keep(group(*outcome))
    )

    assert chance == pytest.approx(kept, abs=5e-7)


@golden("filters", "high_entropy")
def test_the_most_certain_fifth_of_the_turns_is_dropped() -> None:
    """The quantile of these is 0.18."""
    entropies = np.array([0.1, 0.4, 0.2, 0.9, 0.6])

    kept = choose("filters", "high_entropy", FILTERS)(entropies)
    above = choose("filters", {"name": "high_entropy", "quantile": 0.5}, FILTERS)(entropies)

    assert kept.tolist() == [False, True, True, True, True]
    assert above.tolist() == [False, True, False, True, True]
    assert choose("filters", "high_entropy", FILTERS)(np.array([0.3])).tolist() == [True]


@golden("filters", "none", "zero_variance")
@pytest.mark.parametrize(
    ("rewards", "spread"), [((1.0, 1.0), False), ((1.0, 1.0 + 2e-8), True), ((0.0, 5e-9), False)]
)
def test_rewards_within_1e8_count_as_equal(rewards: tuple[float, ...], spread: bool) -> None:
    assert choose("filters", "none", FILTERS)(group(*rewards))
    assert choose("filters", "zero_variance", FILTERS)(group(*rewards)) == spread
