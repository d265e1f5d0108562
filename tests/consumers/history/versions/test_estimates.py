"""pass@k and intervals: golden values, and laws."""

from itertools import combinations
from statistics import mean

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollcall.consumers.history.versions.evaluation import Bootstrap, Estimate, pass_at_k
from tests.support.tiers import examples

COUNTS = st.integers(1, 9).flatmap(
    lambda n: st.tuples(st.just(n), st.integers(0, n), st.integers(1, n))
)
FEW = settings(max_examples=examples(30))
REWARDS = st.lists(st.floats(-10, 10), min_size=1, max_size=12)


@pytest.mark.parametrize(
    ("n", "c", "k", "value"),
    [
        (1, 0, 1, 0.0),
        (1, 1, 1, 1.0),
        (10, 3, 1, 0.3),
        (5, 2, 2, 0.7),
        (10, 3, 5, 1 - 21 / 252),
        (200, 1, 100, 0.5),
        (4, 2, 3, 1.0),
    ],
)
def test_pass_at_k_matches_its_golden_values(n: int, c: int, k: int, value: float) -> None:
    assert pass_at_k(n, c, k) == pytest.approx(value, abs=1e-12)


@FEW
@given(COUNTS)
def test_pass_at_k_is_the_share_of_draws_with_a_success(
    counted: tuple[int, int, int],
) -> None:
    n, c, k = counted
    right = [number < c for number in range(n)]

    assert pass_at_k(n, c, k) == pytest.approx(mean(map(any, combinations(right, k))))


@FEW
@given(COUNTS)
def test_pass_at_k_grows_with_draws_and_successes(counted: tuple[int, int, int]) -> None:
    n, c, k = counted

    assert pass_at_k(n, c, 1) == pytest.approx(c / n)
    assert k == n or pass_at_k(n, c, k) <= pass_at_k(n, c, k + 1)
    assert c == n or pass_at_k(n, c, k) <= pass_at_k(n, c + 1, k)


@pytest.mark.parametrize(("n", "c", "k"), [(2, 1, 3), (2, 3, 1), (2, -1, 1), (2, 1, 0), (0, 0, 1)])
def test_undefined_pass_at_k_is_refused(n: int, c: int, k: int) -> None:
    with pytest.raises(ValueError, match="not defined"):
        pass_at_k(n, c, k)


@FEW
@given(REWARDS, st.integers(0, 99))
def test_an_interval_lies_within_the_values_and_depends_on_the_seed(
    rewards: list[float], seed: int
) -> None:
    ones = [1.0] * len(rewards)

    found = Bootstrap(50, seed).mean(rewards, ones)

    assert found == Bootstrap(50, seed).mean(rewards, ones)
    assert min(rewards) - 1e-9 <= found.low <= found.high <= max(rewards) + 1e-9
    assert found.value == pytest.approx(mean(rewards), abs=1e-9)


@FEW
@given(st.floats(-5, 5), st.integers(1, 9))
def test_equal_tasks_have_an_interval_of_no_width(reward: float, tasks: int) -> None:
    found = Bootstrap(20).mean([3 * reward] * tasks, [3.0] * tasks)

    assert found.low == found.high == pytest.approx(reward, abs=1e-9)


def test_rollouts_of_one_task_are_resampled_together() -> None:
    # One task of 99 successes and one of 99 failures: a draw of tasks is 0, 1/2 or 1.
    found = Bootstrap(seed=1).mean([99, 0], [99, 99])

    assert (found.value, found.low, found.high) == (0.5, 0.0, 1.0)


def test_the_interval_of_a_hundred_tasks_matches_its_golden_value() -> None:
    # 80 of 100: the normal interval is 0.8 -+ 1.96 * 0.04; seed 0 of NumPy's generator gives this.
    found = Bootstrap().mean([1.0] * 80 + [0.0] * 20, [1.0] * 100)

    assert found == Estimate(0.8, pytest.approx(0.72, abs=0.011), pytest.approx(0.88, abs=0.011))


@FEW
@given(st.lists(st.tuples(st.floats(-5, 5), st.floats(-5, 5)), min_size=1, max_size=12))
def test_a_swapped_pair_negates_the_difference(pairs: list[tuple[float, float]]) -> None:
    first, second = [a for a, _ in pairs], [b for _, b in pairs]

    there, back = (Bootstrap(50).difference(*both) for both in ((first, second), (second, first)))

    assert there.value == pytest.approx(-back.value, abs=1e-9)
    assert there.low == pytest.approx(-back.high, abs=1e-9)


def test_a_shift_shared_by_all_tasks_has_no_spread() -> None:
    hard = [0.1, 0.9, 0.5, 0.3, 0.7]

    found = Bootstrap().difference(hard, [value + 0.05 for value in hard])

    assert (found.low, found.high) == (pytest.approx(0.05), pytest.approx(0.05))


@pytest.mark.parametrize(("sums", "counts"), [([], []), ([1.0], [0.0]), ([1.0], [1.0, 2.0])])
def test_a_mean_without_counts_is_refused(sums: list[float], counts: list[float]) -> None:
    with pytest.raises(ValueError, match="count above 0"):
        Bootstrap().mean(sums, counts)
