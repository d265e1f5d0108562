"""Equal rewards teach nothing; the rest is the printed numbers."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.errors import Refused
from schemas.rules import NoOptions, choose
from tests.support.golden import golden
from tests.support.reward_views import advantages, view
from trainer.advantages.batch_normalised import BATCH_NORMALISED
from trainer.catalogue import ADVANTAGES
from trainer.rewards import Floats, Rewards

FIVE = [1.0, 0, 0, 1, 0]


@golden("advantage", "grpo", "dr_grpo", "rloo")
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("grpo", [1.095245, -0.730163, -0.730163, 1.095245, -0.730163]),
        ("dr_grpo", [0.6, -0.4, -0.4, 0.6, -0.4]),
        ("rloo", [0.75, -0.5, -0.5, 0.75, -0.5]),
    ],
)
def test_rules_give_the_printed_advantages(name: str, expected: list[float]) -> None:
    assert np.round(advantages(name, FIVE), 6).tolist() == expected


@golden("advantage", "batch_normalised")
def test_batch_normalised_compares_over_the_whole_batch() -> None:
    found = advantages("batch_normalised", [1, 0, 0, 1, 1, 1, 1, 0], [0] * 4 + [1] * 4)

    high, low = 0.724429, -1.207381
    assert np.round(found, 6).tolist() == [high, low, low, high, high, high, high, low]


@pytest.mark.parametrize("name", sorted(ADVANTAGES))
@given(reward=st.floats(-1e6, 1e6), count=st.integers(2, 9))
def test_equal_rewards_teach_nothing(name: str, reward: float, count: int) -> None:
    assert advantages(name, [reward] * count).tolist() == [0.0] * count


@pytest.mark.parametrize("name", ["grpo", "dr_grpo", "rloo"])
@given(rewards=st.lists(st.floats(-5, 5), min_size=2, max_size=8), other=st.floats(-5, 5))
def test_groups_do_not_see_one_another(name: str, rewards: list[float], other: float) -> None:
    alone = advantages(name, rewards)
    count = len(rewards)
    together = advantages(name, [*rewards, other, 0.0], [0] * count + [1, 1])

    assert together[:count].tolist() == alone.tolist()


@pytest.mark.parametrize("name", sorted(ADVANTAGES))
@given(rewards=st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=2, max_size=8))
def test_advantages_sum_to_nothing(name: str, rewards: list[float]) -> None:
    assert advantages(name, rewards).sum() == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize("name", ["grpo", "dr_grpo", "rloo"])
def test_a_group_of_one_is_refused(name: str) -> None:
    with pytest.raises(Refused, match="singleton"):
        advantages(name, [1.0, 0.0, 1.0], [0, 0, 1])


def test_a_batch_of_one_gets_nothing() -> None:
    assert advantages("batch_normalised", [1.0]).tolist() == [0.0]


def test_a_rule_of_the_users_is_found_by_module_and_function() -> None:
    ours = "trainer.advantages.batch_normalised:BATCH_NORMALISED"
    assert choose("advantage", ours, ADVANTAGES).rule is BATCH_NORMALISED
    plain = choose("advantage", f"{__name__}:centred_by_a_user", ADVANTAGES)
    assert plain(view([1.0, 0.0])).tolist() == [0.5, -0.5]
    assert plain.needs("group")
    assert plain.options == NoOptions()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("grop", "did you mean 'grpo'"),
        ("no.such:rule", "cannot be imported"),
        ("trainer.advantages.spread:nothing", "has no 'nothing'"),
        ("trainer.advantages.spread:EPSILON", "is a float, not a function"),
        ("trainer.losses.gspo:GSPO", "is a rule of kind 'loss'"),
    ],
)
def test_a_rule_nobody_knows_is_refused_by_name(name: str, message: str) -> None:
    with pytest.raises(Refused, match=message):
        choose("advantage", name, ADVANTAGES)


def centred_by_a_user(rewards: Rewards) -> Floats:
    return rewards.totals_N - rewards.totals_N.mean()
