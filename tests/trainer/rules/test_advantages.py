"""Equal rewards give zero advantages; the other tests check published numbers."""

from collections.abc import Iterable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollcall.schemas.errors import Refused
from rollcall.schemas.rules import Need, NoOptions, choose
from rollcall.trainer.rules.advantages import BATCH_NORMALISED
from rollcall.trainer.rules.catalogue import ADVANTAGES
from rollcall.trainer.rules.rewards import Floats, Rewards
from tests.support.golden import golden
from tests.support.reward_views import advantages, valued, view

FIVE = [1.0, 0, 0, 1, 0]
GROUPWISE = sorted(name for name, rule in ADVANTAGES.items() if "group" in rule.needs)


def looks(names: Iterable[int]) -> dict[str, Floats]:
    """What a look has found of trajectories that go by numbers."""
    weights = np.array([-0.1 * each for each in names])
    return {"log_weights_N": weights, "gradient_norms_N": 2 + np.sin(weights)}


@golden("advantage", "grpo", "dr_grpo", "rloo")
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("grpo", [1.095245, -0.730163, -0.730163, 1.095245, -0.730163]),
        ("dr_grpo", [0.6, -0.4, -0.4, 0.6, -0.4]),
        ("rloo", [0.75, -0.5, -0.5, 0.75, -0.5]),
    ],
)
def test_rules_give_the_published_advantages(name: str, expected: list[float]) -> None:
    assert np.round(advantages(name, FIVE), 6).tolist() == expected


@golden("advantage", "batch_normalised")
def test_batch_normalised_compares_rewards_over_the_whole_batch() -> None:
    found = advantages("batch_normalised", [1, 0, 0, 1, 1, 1, 1, 0], [0] * 4 + [1] * 4)

    high, low = 0.724429, -1.207381
    assert np.round(found, 6).tolist() == [high, low, low, high, high, high, high, low]


@pytest.mark.parametrize("name", sorted(ADVANTAGES))
@given(reward=st.floats(-1e6, 1e6), count=st.integers(2, 9))
def test_equal_rewards_give_zero_advantages(name: str, reward: float, count: int) -> None:
    channels = {scorer: np.full(count, reward) for scorer in ("a", "b")}
    seen = looks(range(count))
    found = valued(name, [reward] * count, lengths=range(1, count + 1), channels=channels, **seen)

    assert found.values_N.tolist() == [0.0] * count
    assert found.tokens is None or not any(each.any() for each in found.tokens)


@pytest.mark.parametrize("name", ["grpo", "dr_grpo", "rloo", "mc_grpo", "success_weighted"])
@given(rewards=st.lists(st.floats(-5, 5), min_size=2, max_size=8), other=st.floats(-5, 5))
def test_advantages_of_a_group_do_not_depend_on_other_groups(
    name: str, rewards: list[float], other: float
) -> None:
    alone = advantages(name, rewards)
    count = len(rewards)
    together = advantages(name, [*rewards, other, 0.0], [0] * count + [1, 1])

    assert together[:count].tolist() == alone.tolist()


@pytest.mark.parametrize("name", sorted(ADVANTAGES.keys() - {"mc_grpo", "gdpo", "opob"}))
@given(rewards=st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=2, max_size=8))
def test_advantages_sum_to_zero(name: str, rewards: list[float]) -> None:
    assert advantages(name, rewards).sum() == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize("name", [*GROUPWISE, "opob"])
@given(rewards=st.lists(st.floats(-5, 5), min_size=2, max_size=8), data=st.data())
def test_a_permutation_of_a_group_permutes_its_advantages(
    name: str, rewards: list[float], data: st.DataObject
) -> None:
    order = data.draw(st.permutations(range(len(rewards))))
    two = {"a": np.array(rewards), "b": np.array(rewards) ** 2}
    moved = {scorer: given[order] for scorer, given in two.items()}

    straight = advantages(name, rewards, channels=two, **looks(range(len(rewards))))
    mixed = advantages(name, [rewards[at] for at in order], channels=moved, **looks(order))

    assert mixed.tolist() == pytest.approx(straight[order].tolist(), rel=1e-6, abs=1e-6)


@golden("advantage", "reinforce_pp", "reinforce_pp_baseline")
def test_reinforce_pp_whitens_returns_over_tokens_at_published_values() -> None:
    kl = (np.array([0.1, 0, 0.2]), np.array([0, 0.3]))
    plain = valued({"name": "reinforce_pp", "beta": 0.1}, [1, 0], lengths=[3, 2], kl=kl)
    based = valued("reinforce_pp_baseline", [1, 0], lengths=[1, 3])

    assert plain.tokens is not None
    assert based.tokens is not None
    assert [np.round(each, 6).tolist() for each in plain.tokens] == [
        [0.718186, 0.736322, 0.736322], [-1.095415, -1.095415],
    ]  # fmt: skip
    assert [np.round(each, 6).tolist() for each in based.tokens] == [[1.5], [-0.5] * 3]


def test_a_kl_penalty_without_a_reference_is_refused() -> None:
    with pytest.raises(Refused, match="needs a reference"):
        advantages({"name": "reinforce_pp", "beta": 0.1}, [1, 0])


WEIGHED = {
    "log_weights_N": np.log([1.0, 0.5, 2.0, 0.25]),
    "gradient_norms_N": np.array([1.0, 2.0, 1.0, 4.0]),
}
PAID = [1.0, 0.0, 1.0, 0.0]


@golden("advantage", "opob")
def test_opob_baseline_minimises_variance_at_the_published_values() -> None:
    b = 1 - advantages("opob", PAID, **WEIGHED)[0]

    def spread(baseline: float) -> float:
        weights = np.exp(2 * WEIGHED["log_weights_N"]) * WEIGHED["gradient_norms_N"]
        return float((weights * (np.array(PAID) - baseline) ** 2).sum())

    assert b == pytest.approx(0.869565, abs=5e-7)
    assert spread(b) == pytest.approx(0.652174, abs=5e-7)
    assert [spread(b + by) for by in (-0.05, 0.05)] == pytest.approx([0.666549] * 2, abs=5e-7)


def test_opob_baseline_has_a_scope_and_survives_huge_weights() -> None:
    groups, log_weights = [0, 0, 1, 1], np.array([0.0, -800.0, 700.0, -3.0])
    seen = {"log_weights_N": log_weights, "gradient_norms_N": np.ones(4)}
    of_group = advantages("opob", PAID, groups, **seen)
    of_batch = advantages({"name": "opob", "scope": "batch"}, PAID, groups, **seen)
    middle = advantages({"name": "opob", "centre": "median"}, [3, 0, 1, 9], **WEIGHED)
    scaled = advantages({"name": "opob", "over_std": True}, PAID, **WEIGHED)
    short = advantages({"name": "opob", "over_length": True}, PAID, None, [1, 1, 9, 1], **WEIGHED)

    assert of_group.tolist() == pytest.approx([0, -1, 0, -1], abs=1e-6)
    assert of_batch.tolist() == pytest.approx([0, -1, 0, -1], abs=1e-6)
    assert middle.tolist() == [2, -1, 0, 8]  # 4 of 5.75 lie on the third
    assert scaled.tolist() == pytest.approx(
        (np.array([1, 0, 1, 0]) - 0.869565) / (np.std([1, 0, 1, 0], ddof=1) + 1e-4), abs=1e-5
    )
    assert 1 - short[0] == pytest.approx((1 + 4 / 81) / (1.75 + 4 / 81))


def test_opob_without_its_computed_inputs_is_refused() -> None:
    with pytest.raises(Refused, match="prox is missing"):
        advantages("opob", PAID)


@golden("advantage", "mc_grpo")
def test_mc_grpo_compares_with_the_median_at_published_values() -> None:
    rewards = [0, 0.1, 0.4, 0.5, 1]
    found = valued("mc_grpo", rewards)
    scaled = advantages({"name": "mc_grpo", "rescale": True}, rewards)

    assert np.round(found.values_N, 6).tolist() == [-1.328904, -0.996678, 0, 0.332226, 1.993355]
    assert np.round(scaled, 6).tolist() == [-1.661130, -1.245847, 0, 0.415282, 2.491694]
    assert found.keep_N is not None
    assert found.keep_N.tolist() == [True, True, False, True, True]


def test_mc_grpo_stays_bounded_when_most_rewards_are_equal() -> None:
    found = valued("mc_grpo", FIVE)

    assert found.values_N.tolist() == FIVE
    assert found.keep_N is not None
    assert found.keep_N.tolist() == [True, False, True, True, True]
    assert abs(advantages("mc_grpo", [0, 0, 1e-9, 1e6, 1])).max() <= 10


@golden("advantage", "gdpo")
def test_gdpo_separates_two_rewards_at_published_values() -> None:
    a, b = [1, 1, 0, 0, 1, 0, 0, 0], [1, 0, 1, 0, 1, 1, 0, 0]
    channels = {"a": np.array(a, dtype=float), "b": np.array(b, dtype=float)}
    total, groups = (np.array(a) + b).tolist(), [0] * 4 + [1] * 4

    found = advantages("gdpo", total, groups, channels=channels)

    expected = [1.165257, 0, 0, -1.165257, 1.591743, 0.246257, -0.919000, -0.919000]
    assert np.round(found, 6).tolist() == expected
    assert np.round(advantages("grpo", total, groups), 6).tolist() == [
        1.224595, 0, 0, -1.224595, 1.305446, 0.261089, -0.783268, -0.783268,
    ]  # fmt: skip


def test_gdpo_counts_a_missing_reward_as_zero_and_needs_two_scorers() -> None:
    gone = {"a": np.array([1.0, np.nan]), "b": np.array([0.0, 1.0])}
    there = {"a": np.array([1.0, 0.0]), "b": np.array([0.0, 1.0])}

    assert (
        advantages("gdpo", [1, 1], channels=gone) == advantages("gdpo", [1, 1], channels=there)
    ).all()
    with pytest.raises(Refused, match="compares scorers, and there is 1"):
        advantages("gdpo", [1, 0], channels={"a": np.array([1.0, 0.0])})


@golden("advantage", "success_weighted")
@pytest.mark.parametrize(
    ("rewards", "expected"),
    [
        ([1, 0, 0, 0, 0, 0, 0, 0], [7, -1, -1, -1, -1, -1, -1, -1]),
        ([1, 1, 1, 0], [1 / 3, 1 / 3, 1 / 3, -1]),
        ([0, -0.05, -0.4, 0], [0, 0, 0, 0]),
        ([1, -0.4], [1, -1]),
    ],
)
def test_a_rarer_success_weighs_more(rewards: list[float], expected: list[float]) -> None:
    assert advantages("success_weighted", rewards).tolist() == pytest.approx(expected)


def test_success_weighted_ranks_failures_if_shortfall_is_set() -> None:
    rule = {"name": "success_weighted", "shortfall": 10}

    assert advantages(rule, [0, -0.1, 0, -0.1]).tolist() == pytest.approx([0.5, -0.5, 0.5, -0.5])
    assert advantages(rule, [1, -0.2, 0, 0]).tolist() == pytest.approx([3.5, -2.5, -0.5, -0.5])
    with pytest.raises(Refused, match="shortfall is -1; give 0"):
        advantages({"name": "success_weighted", "shortfall": -1}, [1, 0])


@pytest.mark.parametrize("name", ["grpo", "dr_grpo", "rloo", "mc_grpo", "success_weighted"])
def test_a_group_of_one_is_refused(name: str) -> None:
    with pytest.raises(Refused, match="singleton"):
        advantages(name, [1.0, 0.0, 1.0], [0, 0, 1])


def test_a_batch_of_one_gets_a_zero_advantage() -> None:
    assert advantages("batch_normalised", [1.0]).tolist() == [0.0]


def test_a_user_rule_is_found_by_module_and_function() -> None:
    ours = "rollcall.trainer.rules.advantages:BATCH_NORMALISED"
    assert choose("advantage", ours, ADVANTAGES).rule is BATCH_NORMALISED
    plain = choose("advantage", f"{__name__}:centred_by_a_user", ADVANTAGES)
    assert plain(view([1.0, 0.0])).tolist() == [0.5, -0.5]
    assert plain.needs(Need.GROUP)
    assert plain.options == NoOptions()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("grop", "did you mean 'grpo'"),
        ("no.such:rule", "cannot be imported"),
        ("rollcall.trainer.rules.advantages:nothing", "has no 'nothing'"),
        ("rollcall.trainer.rules.advantages:EPSILON", "is a float, not a function"),
        ("rollcall.trainer.rules.losses:GSPO", "is a rule of kind 'loss'"),
    ],
)
def test_an_unknown_rule_is_refused_by_name(name: str, message: str) -> None:
    with pytest.raises(Refused, match=message):
        choose("advantage", name, ADVANTAGES)


def centred_by_a_user(rewards: Rewards) -> Floats:
    return rewards.totals_N - rewards.totals_N.mean()
