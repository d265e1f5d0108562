"""Control records and deadlines, as an agents worker applies them."""

from rollcall.schemas.messages import (
    CallFailed,
    DeadlinePassed,
    Limits,
    RolloutCancelled,
)
from tests.support.hand_answers import ask, calls
from tests.support.journals import request
from tests.support.programs import ASKS, WALKS
from tests.support.rig import Rig, role_of


def test_a_control_record_cancels_one_rollout(rig: Rig) -> None:
    loop = rig.agents()
    ask(rig, "a")
    ask(rig, "b")
    rig.settle(loop)

    rig.order("cancel", rollout_id="a", reason="enough")
    rig.commit(loop)
    rig.settle(loop)

    cancelled = rig.events(RolloutCancelled)[0]
    assert (cancelled.rollout_id, cancelled.body.reason) == ("a", "enough")
    assert [(t.rollout_id, t.status) for t in rig.trajectories()] == [("a", "cancelled")]
    assert [c.kind for c in calls(rig) if c.rollout_id == "a"] == ["sample", "abort"]


def test_a_control_record_checks_only_the_rollouts_it_names(rig: Rig) -> None:
    looked: list[str] = []

    loop = rig.agents()
    control = role_of(loop).control
    cancels = control.cancels
    control.cancels = lambda asked: looked.append(asked.rollout_id) or cancels(asked)
    for n in range(20):
        ask(rig, f"r{n}", group_id=f"g{n % 10}", group_size=2)
    rig.settle(loop)
    looked.clear()

    rig.order("cancel", rollout_id="r3")
    rig.order("cancel", group_id="g4")
    rig.order("cancel", group_id="nobody")
    rig.order("cancel", rollout_id="r14")
    rig.order("cancel")
    rig.clock.pass_by(1)
    rig.settle(loop)

    assert sorted(looked) == ["r14", "r3", "r4"]
    assert {e.rollout_id for e in rig.events(RolloutCancelled)} == {"r14", "r3", "r4"}


def test_a_cancel_with_a_megabyte_of_reason_works(rig: Rig) -> None:
    loop = rig.agents()
    ask(rig, "a")
    rig.settle(loop)

    rig.order("cancel", rollout_id="a", reason="x" * 999_900)
    rig.clock.pass_by(1)
    rig.settle(loop)

    assert rig.trajectories()[0].status == "cancelled"


def test_a_control_record_cancels_a_group_including_later_members(rig: Rig) -> None:
    loop = rig.agents()
    ask(rig, "a", group_id="g")
    ask(rig, "b", group_id="other")
    rig.settle(loop)

    rig.order("cancel", group_id="g")
    rig.commit(loop)
    ask(rig, "late", group_id="g")
    rig.settle(loop)

    assert {t.rollout_id for t in rig.trajectories()} == {"a", "late"}


def test_an_unreadable_control_record_is_buried_and_the_next_is_applied(rig: Rig) -> None:
    loop = rig.agents()
    ask(rig, "a")
    rig.settle(loop)
    rig.log.append(rig.topics.control, None, b"no magic", 0)

    rig.order("cancel", rollout_id="a")
    rig.commit(loop)
    rig.settle(loop)

    assert len(rig.log.all(rig.topics.dead_letters)) == 1
    assert rig.trajectories()[0].status == "cancelled"


def test_a_call_without_an_answer_fails_and_is_retried(rig: Rig) -> None:
    loop = rig.agents()
    ask(rig, limits=Limits(call_timeout_s=5.0, max_tries=2))
    rig.settle(loop)

    rig.clock.pass_by(11.5)
    rig.settle(loop)
    assert rig.events(CallFailed) == []
    rig.clock.pass_by(1.5)
    rig.settle(loop)
    assert [c.tries for c in calls(rig)] == [0, 1]
    rig.clock.pass_by(13.0)
    rig.settle(loop)

    assert [e.body.code for e in rig.events(CallFailed)] == ["deadline", "deadline"]
    assert rig.trajectories()[0].code == "deadline"


def test_a_rollout_past_its_deadline_is_ended(rig: Rig) -> None:
    loop = rig.agents()
    ask(rig, agent=WALKS, limits=Limits(rollout_timeout_s=100.0, step_timeout_s=1000.0))
    rig.settle(loop)

    rig.clock.pass_by(101.0)
    rig.settle(loop)

    assert len(rig.events(DeadlinePassed)) == 1
    assert rig.trajectories()[0].status == "timed_out"


def test_a_broker_with_a_fast_clock_ends_no_other_waits() -> None:
    """Neither in its own partitions, where it stamps one record or all, nor in others."""
    rig = Rig(partitions=2)
    loop = rig.agents()
    for n in range(6):
        rig.ask(request(f"r{n}", ASKS), n % 2)
    rig.settle(loop)
    now = rig.log.wall
    rig.log.wall = lambda: now() + 600.0
    rig.ask(request("stamped", ASKS), 1)
    rig.settle(loop)
    rig.log.wall = now

    for _ in range(10):
        rig.clock.pass_by(0.6)
        rig.settle(loop)

    assert rig.events(CallFailed) == []


def test_an_agents_worker_with_a_fast_clock_waits_the_full_time(rig: Rig) -> None:
    rig.wall = lambda: rig.clock() + 130.0
    loop = rig.agents()
    ask(rig, limits=Limits(call_timeout_s=120.0))
    rig.settle(loop)

    rig.clock.pass_by(290.0)
    rig.settle(loop)
    assert rig.events(CallFailed) == []
    rig.clock.pass_by(11.0)
    rig.settle(loop)

    assert [e.body.code for e in rig.events(CallFailed)] == ["deadline"]
