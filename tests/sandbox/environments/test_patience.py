"""How long a step waits for more requests: a share of a reply time, longer after late ones."""

import pytest

from rollcall.sandbox.environments.reply_history import HOLD, HOLD_S, AdaptiveWait
from tests.support.rig import Clock


def waited(patience: AdaptiveWait, clock: Clock) -> float:
    return round(patience.until() - clock(), 5)


def replied(clock: Clock, *, after_s: float) -> AdaptiveWait:
    patience = AdaptiveWait(clock)
    patience.shown("a")
    clock.pass_by(after_s)
    patience.replied("a")
    return patience


def test_wait_is_minimal_before_the_first_reply() -> None:
    clock = Clock()

    assert waited(AdaptiveWait(clock), clock) == pytest.approx(HOLD_S[0])


def test_wait_is_a_share_of_reply_time_up_to_a_bound() -> None:
    clock = Clock()

    assert waited(replied(clock, after_s=2.0), clock) == pytest.approx(HOLD * 2.0)
    assert waited(replied(clock, after_s=500.0), clock) == pytest.approx(HOLD_S[1])


def test_wait_doubles_after_late_requests_up_to_half_a_reply() -> None:
    clock = Clock()
    patience = replied(clock, after_s=1.0)
    held = []
    for _ in range(5):
        held.append(waited(patience, clock))
        patience.end()
        patience.learn(late=True)

    assert held == pytest.approx([0.1, 0.2, 0.4, 0.5, 0.5])


def test_wait_shrinks_again_after_a_round_without_late_requests() -> None:
    clock = Clock()
    patience = replied(clock, after_s=1.0)
    patience.until()
    patience.end()
    patience.learn(late=True)
    longer = waited(patience, clock)
    patience.learn(late=True)
    same = waited(patience, clock)
    patience.end()
    patience.learn(late=False)

    assert (longer, same, waited(patience, clock)) == pytest.approx((0.2, 0.2, 0.1))
