"""Two users of one model server: a flood by one does not delay the other."""

from collections import deque
from statistics import median

import pytest

from rollcall.producers.control import send_quota
from rollcall.schemas.messages import Limits, ModelCall, Quota, RolloutFinished
from tests.support.hand_answers import answer, ask
from tests.support.programs import TWICE
from tests.support.rig import Rig

TURN_S = 0.01
CALL_S = 0.05
"""The server answers one call after the other, each in this time."""
FLOOD = 20
"""So many rollouts the other user always has asked for."""
WANTED = 10
"""Rollouts of the quiet user, one after the other."""
LIMITS = Limits(call_timeout_s=10_000.0, rollout_timeout_s=100_000.0)


def p50(flood: int, quota: Quota | None = None) -> float:
    """How long the quiet user's rollouts take, beside a flood of so many that never ebbs."""
    rig = Rig()
    if quota is not None:
        send_quota(rig.pen, rig.codec, rig.topics, quota.user, quota)
    loop = rig.agents()
    for n in range(flood):
        ask(rig, f"flood{n}", TWICE, user="flood", limits=LIMITS)
    rig.settle(loop)
    calls = rig.log.reader([rig.topics.calls("p")])
    queue: deque[ModelCall] = deque()
    took: list[float] = []
    asked_at, free_at = 0.0, rig.clock.now
    while len(took) < WANTED:
        if not asked_at:
            asked_at = rig.clock.now
            ask(rig, f"quiet{len(took)}", TWICE, user="quiet", limits=LIMITS)
        rig.clock.pass_by(TURN_S)
        loop.turn(0.0)
        queue += [rig.codec.decode(record.value, ModelCall) for record in calls.poll(0.0)]
        if queue and rig.clock.now >= free_at:
            answer(rig, call := queue.popleft())
            free_at = rig.clock.now + CALL_S
            if call.rollout_id.startswith("flood") and call.position == 1:
                ask(rig, f"{call.rollout_id}+", TWICE, user="flood", limits=LIMITS)
        if f"quiet{len(took)}" not in loop.role.owned[0].journal.open and ended(rig, len(took)):
            took.append(rig.clock.now - asked_at)
            asked_at = 0.0
    return median(took)


def ended(rig: Rig, number: int) -> bool:
    """Whether the quiet user's rollout of this number has come to its end."""
    return any(e.rollout_id == f"quiet{number}" for e in rig.events(RolloutFinished))


@pytest.mark.parametrize(
    "quota",
    [Quota("flood", calls_per_s=5.0), Quota("flood", running=1)],
    ids=["calls_per_s", "running"],
)
def test_limited_flood_does_not_double_the_wait_of_another_user(quota: Quota) -> None:
    assert p50(FLOOD, quota) <= 2 * p50(0)


def test_unlimited_flood_multiplies_the_wait_of_another_user() -> None:
    """This shows that the limits of the test above matter."""
    assert p50(FLOOD) > 10 * p50(0)
