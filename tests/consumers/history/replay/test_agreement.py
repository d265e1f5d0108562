"""How two scorings agree."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollcall.consumers.history.replay.rescoring import LISTED, Agreement, Flip
from tests.support.tiers import examples

FEW = settings(max_examples=examples(50))
TOTALS = st.none() | st.floats(-3, 3)


def folded(pairs: list[tuple[float | None, float | None]]) -> Agreement:
    found = Agreement("old")
    for number, (old, new) in enumerate(pairs):
        found.take(f"r{number}", 1, old, new)
    return found


def test_agreement_flips_and_one_sided_scores_are_counted() -> None:
    one_alone = [(None, 1.0), (1.0, None), (None, None)]
    found = folded([(1.0, 1.0 + 1e-10), (0.0, 1.0), (1.0, 0.25), (-0.5, 0.5), *one_alone])

    assert (found.compared, found.agree) == (4, 1)
    assert (found.succeed_now, found.fail_now, found.signs_flipped) == (1, 1, 1)
    assert (found.only_new, found.only_old, found.neither) == (1, 1, 1)
    assert found.mean_difference == pytest.approx((1.0 - 0.75 + 1.0) / 4)
    assert found.flips == [
        Flip("r1", 1, 0.0, 1.0), Flip("r2", 1, 1.0, 0.25), Flip("r3", 1, -0.5, 0.5)
    ]  # fmt: skip


@FEW
@given(st.lists(st.tuples(TOTALS, TOTALS)))
def test_every_trajectory_is_counted_once(pairs: list[tuple[float | None, float | None]]) -> None:
    found = folded(pairs)

    counted = found.compared + found.only_old + found.only_new + found.neither
    assert counted == len(pairs)
    assert found.agree <= found.compared
    assert len(found.flips) <= LISTED


@FEW
@given(st.lists(TOTALS))
def test_a_scoring_agrees_with_itself(totals: list[float | None]) -> None:
    found = folded([(total, total) for total in totals])

    assert found.agree == found.compared
    assert (found.succeed_now, found.fail_now, found.signs_flipped, found.flips) == (0, 0, 0, [])
    assert found.mean_difference == 0.0
