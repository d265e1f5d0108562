"""Limits of an agents worker: capacity, pauses and user quotas."""

from dataclasses import replace

import pytest

from rollcall.consumers.agents.effects import Agent, Task
from rollcall.consumers.agents.programs import program_of
from rollcall.consumers.agents.worker import Capacity
from rollcall.producers.publisher import VALUE_LIMIT_BYTES
from rollcall.schemas.codec import Codec, LocalRegistry, Registry
from rollcall.schemas.errors import Unavailable
from rollcall.schemas.messages import (
    DeadlinePassed,
    Limits,
    Quota,
    RolloutRefused,
    RolloutStarted,
)
from tests.support.hand_answers import answer, ask, calls, killed, steps
from tests.support.journals import request
from tests.support.programs import ASKS, WALKS
from tests.support.rig import Clock, M, Rig, role_of, source_of


class Dear(Codec):
    """Each decoding costs more than half a turn."""

    def __init__(self, registry: Registry, clock: Clock) -> None:
        super().__init__(registry, clock=clock)
        self._passes = clock

    def decode(self, value: bytes | None, expected: type[M]) -> M:
        self._passes.pass_by(0.3)
        return super().decode(value, expected)


class Mute(LocalRegistry):
    """Has no schema for one topic."""

    topic = ""

    def writer_id(self, topic: str, schema: str) -> int:
        if topic == self.topic:
            msg = "the registry does not answer"
            raise Unavailable(msg)
        return super().writer_id(topic, schema)


def test_a_full_worker_pauses_requests_but_never_the_journal(rig: Rig) -> None:
    loop = rig.agents(capacity=Capacity(max_live=8))
    for n in range(600):
        ask(rig, f"r{n}")

    rig.settle(loop)
    events, requests = (loop.partitions[t, 0] for t in (rig.topics.events, rig.topics.requests))
    assert requests.paused
    assert not events.paused
    assert len(calls(rig)) == 500  # one batch had been polled
    for call in calls(rig):
        answer(rig, call)
    rig.settle(loop)

    assert not events.paused
    assert len(calls(rig)) == 600


def test_a_paused_run_takes_no_requests_until_it_is_resumed(rig: Rig) -> None:
    loop = rig.agents()
    rig.order("pause")
    rig.settle(loop)
    ask(rig)
    rig.commit(loop)
    rig.commit(loop)
    assert rig.log.all(rig.topics.events) == []

    rig.order("resume")
    rig.commit(loop)
    rig.commit(loop)
    rig.settle(loop)

    assert len(calls(rig)) == 1


def test_a_worker_started_during_a_pause_starts_no_request(rig: Rig) -> None:
    """Requests delivered before the partition was paused wait in order."""
    rig.order("pause")
    ask(rig, "r0")
    rig.log.append(rig.topics.requests, b"bad", b"rubbish", 0)
    ask(rig, "r1")
    loop = rig.agents()
    rig.settle(loop)
    rig.commit(loop)
    assert rig.log.all(rig.topics.events) == []
    assert rig.committed("t.agents", rig.topics.requests) in (None, 0)

    rig.order("resume")
    rig.commit(loop)
    rig.settle(loop)

    assert [c.rollout_id for c in calls(rig)] == ["r0", "r1"]
    assert [e.rollout_id for e in rig.events(RolloutRefused)] == ["bad"]
    rig.commit(loop)
    assert rig.committed("t.agents", rig.topics.requests) == 3


def test_requests_after_a_pause_start_behind_requests_before_it(rig: Rig) -> None:
    # Given requests that were delivered before the pause was known, and one that came after
    rig.order("pause")
    ask(rig, "r0")
    ask(rig, "r1")
    loop = rig.agents()
    rig.settle(loop)
    ask(rig, "r2")
    rig.settle(loop)

    rig.order("resume")
    rig.commit(loop)
    rig.settle(loop)

    # Then none is skipped, as every start says that all before it were seen
    assert [c.rollout_id for c in calls(rig)] == ["r0", "r1", "r2"]


def test_requests_keep_their_order_when_a_journal_fold_comes_between_slices(
    rig: Rig,
) -> None:
    # Given a journal that was reset, and records that cost so much that turns end between them
    old = rig.agents("a1")
    for n in range(3):
        ask(rig, f"old{n}")
    rig.settle(old)
    rig.commit(old)
    source_of(old).kill()
    del rig.log.group("t.agents").committed[rig.topics.events, 0]
    for n in range(12):
        ask(rig, f"new{n}")
    rig.codec = Dear(rig.registry, rig.clock)

    loop = rig.agents("a2")
    rig.settle(loop)

    asked = {call.rollout_id for call in calls(rig)}
    assert asked == {*(f"old{n}" for n in range(3)), *(f"new{n}" for n in range(12))}


def test_requests_of_a_paused_partition_move_with_it() -> None:
    rig = Rig(partitions=2)
    first = rig.agents("a1")
    rig.order("pause")
    rig.commit(first)
    for partition in (0, 1):
        rig.ask(request(f"r{partition}", ASKS), partition)
    rig.settle(first)
    second = rig.agents("a2")
    rig.settle(first, second)

    rig.order("resume")
    rig.commit(first, second)
    rig.settle(first, second)

    starts = rig.events(RolloutStarted)
    assert sorted(e.rollout_id for e in starts) == ["r0", "r1"]


@pytest.mark.parametrize(("policy", "code"), [("p", "too_large"), ("none", "refused")])
def test_an_oversized_request_delayed_in_writing_leaves_no_offset_gap(
    rig: Rig, policy: str, code: str
) -> None:
    # Given a request whose start is a little larger than a record may be, and one behind it
    registry = Mute()
    registry.topic = rig.topics.events
    rig.codec = Codec(registry, clock=rig.clock)
    large = replace(request("large", ASKS), policy_id=policy)
    room = VALUE_LIMIT_BYTES - len(rig.codec.encode(rig.topics.requests, large)) - 8
    rig.ask(replace(large, task=replace(large.task, prompt=large.task.prompt + "x" * room)))
    ask(rig, "r")
    loop = rig.agents()
    rig.settle(loop)
    assert rig.log.all(rig.topics.events) == []

    # When the records can be encoded again, and no broker has answered yet
    registry.topic = ""
    role_of(loop).outbox.commands.hold_acks = True
    rig.commit(loop)
    rig.commit(loop)
    assert rig.committed("t.agents", rig.topics.requests) in (None, 0)
    role_of(loop).outbox.commands.hold_acks = False
    rig.settle(loop)
    rig.commit(loop)

    # Then the one is refused, and the other runs
    refused = rig.events(RolloutRefused)
    assert [(e.rollout_id, e.body.code) for e in refused] == [("large", code)]
    assert [c.rollout_id for c in calls(rig)] == ["r"]
    assert rig.committed("t.agents", rig.topics.requests) == 2


def test_a_quota_delays_the_first_command_but_not_the_start(rig: Rig) -> None:
    loop = rig.agents(capacity=Capacity(quota=Quota("", running=2)))
    for n in range(4):
        ask(rig, f"r{n}", user="ann")
    ask(rig, "other", user="bob")

    rig.settle(loop)
    assert len(rig.events(RolloutStarted)) == 5
    assert [c.rollout_id for c in calls(rig)] == ["r0", "r1", "other"]
    rig.clock.pass_by(30.0)
    answer(rig, calls(rig)[1])
    rig.settle(loop)

    late = calls(rig)[3]
    assert (late.rollout_id, len(calls(rig))) == ("r2", 4)
    assert late.not_after_ms == int((rig.clock.now + 120.0) * 1000)


def test_a_quota_stops_the_clock_of_the_rollouts_it_holds(rig: Rig) -> None:
    loop = rig.agents(capacity=Capacity(quota=Quota("", running=1)))
    limits = Limits(rollout_timeout_s=3600.0, call_timeout_s=1000.0)
    for n in range(12):
        ask(rig, f"r{n}", user="ann", limits=limits)
    rig.settle(loop)

    for n in range(12):
        for _ in range(4):
            rig.clock.pass_by(100.0)
            rig.settle(loop)
        answer(rig, calls(rig)[n])
        rig.settle(loop)

    assert [t.status for t in rig.trajectories()] == ["finished"] * 12


def test_a_held_rollout_times_out_by_its_own_clock(rig: Rig) -> None:
    loop = rig.agents(capacity=Capacity(quota=Quota("", running=1)))
    for n in range(2):
        ask(rig, f"r{n}", WALKS, user="ann", limits=Limits(rollout_timeout_s=100.0))
    rig.settle(loop)
    rig.clock.pass_by(101.0)
    rig.settle(loop)
    assert [e.rollout_id for e in rig.events(DeadlinePassed)] == ["r0"]

    rig.clock.pass_by(99.0)
    rig.settle(loop)
    assert len(rig.trajectories()) == 1
    rig.clock.pass_by(2.0)
    rig.settle(loop)

    assert [e.rollout_id for e in rig.events(DeadlinePassed)] == ["r0", "r1"]


def test_a_takeover_counts_a_held_rollouts_time_from_its_first_answer(
    rig: Rig,
) -> None:
    """The release is not recorded; its first answer is, and came later."""
    first = rig.agents("a1", capacity=Capacity(quota=Quota("", running=1)))
    for n in range(2):
        ask(rig, f"r{n}", WALKS, user="ann", limits=Limits(rollout_timeout_s=100.0))
    rig.settle(first)
    rig.clock.pass_by(101.0)
    rig.settle(first)
    answer(rig, next(step for step in steps(rig) if step.rollout_id == "r1"))
    rig.settle(first)
    rig.commit(first)
    killed(first)

    second = rig.agents("a2")
    rig.clock.pass_by(95.0)
    rig.settle(second)
    assert len(rig.trajectories()) == 1
    rig.clock.pass_by(5.0)
    rig.settle(second)

    assert [t.status for t in rig.trajectories()] == ["timed_out", "timed_out"]


def test_rollouts_held_by_a_quota_leave_capacity_for_others(rig: Rig) -> None:
    loop = rig.agents(capacity=Capacity(max_live=8, quota=Quota("", running=2)))
    for n in range(600):
        ask(rig, f"r{n}", user="ann")
    ask(rig, "other", user="bob")

    rig.settle(loop)

    assert [c.rollout_id for c in calls(rig)] == ["r0", "r1", "other"]


def test_the_number_of_rollouts_held_by_quotas_is_bounded(rig: Rig) -> None:
    loop = rig.agents(capacity=Capacity(quota=Quota("", running=1), max_held=100))
    for n in range(600):
        ask(rig, f"r{n}", user="ann")

    rig.settle(loop)

    assert len(rig.events(RolloutStarted)) == 500  # one batch had been polled


@pytest.mark.parametrize("most", [0, 2])
def test_a_takeover_starts_a_rollout_held_by_a_quota(rig: Rig, most: int) -> None:
    """Also if the successor has no quotas and cannot see which rollouts were held back."""
    first = rig.agents("a1", capacity=Capacity(quota=Quota("", running=1)))
    ask(rig, "r0", user="ann")
    ask(rig, "r1", user="ann")
    rig.settle(first)
    rig.commit(first)
    killed(first)

    second = rig.agents("a2", capacity=Capacity(quota=Quota("", running=most)))
    rig.settle(second)

    assert "r1" in [c.rollout_id for c in calls(rig)]


def test_commands_unsent_by_a_dead_successor_are_sent_by_the_next(rig: Rig) -> None:
    first = rig.agents("a1", capacity=Capacity(quota=Quota("", running=1)))
    ask(rig, "r0", WALKS, user="ann")
    ask(rig, "r1", user="ann")
    rig.settle(first)
    rig.commit(first)
    killed(first)
    second = rig.agents("a2")
    role_of(second).outbox.commands.send = lambda *args, **named: None
    rig.settle(second)
    answer(rig, steps(rig)[0])
    rig.settle(second)
    rig.commit(second)
    assert calls(rig) == []
    killed(second)

    rig.settle(rig.agents("a3"))

    assert [c.rollout_id for c in calls(rig)] == ["r1"]


def test_a_cancelled_rollout_gives_its_place_to_the_next(rig: Rig) -> None:
    loop = rig.agents(capacity=Capacity(quota=Quota("", running=1)))
    for n in range(3):
        ask(rig, f"r{n}", user="ann")
    rig.settle(loop)

    for name in ("r1", "r0"):
        rig.order("cancel", rollout_id=name)
        rig.commit(loop)
        rig.settle(loop)

    assert [c.rollout_id for c in calls(rig) if c.kind == "sample"] == ["r0", "r2"]


def test_a_partition_may_be_revoked_while_rollouts_wait_for_a_quota(rig: Rig) -> None:
    def fails(task: Task) -> Agent:
        raise ValueError
        yield

    loop = rig.agents(
        capacity=Capacity(quota=Quota("", running=1)),
        programs=lambda name: fails if name == "fails" else program_of(name),
    )
    ask(rig, "r0", user="ann")
    ask(rig, "r1", agent="fails", user="ann")
    rig.settle(loop)

    loop.stop()

    assert [c.rollout_id for c in calls(rig)] == ["r0"]
    assert loop.partitions == {}


def test_a_takeover_does_not_expire_a_rollout_held_by_a_quota(rig: Rig) -> None:
    first = rig.agents("a1", capacity=Capacity(quota=Quota("", running=1)))
    ask(rig, "r0", user="ann")
    ask(rig, "r1", user="ann")
    rig.settle(first)
    rig.commit(first)
    killed(first)
    rig.clock.pass_by(500.0)
    second = rig.agents("a2", capacity=Capacity(quota=Quota("", running=2)))
    rig.settle(second)
    late = [c for c in calls(rig) if c.rollout_id == "r1" and c.tries == 0]
    assert late[-1].not_after_ms > rig.clock.now * 1000


def test_a_worker_with_capacity_one_takes_the_next_request_afterwards(rig: Rig) -> None:
    loop = rig.agents(capacity=Capacity(max_live=1))
    ask(rig, "a")
    rig.settle(loop)
    ask(rig, "b")
    answer(rig, calls(rig)[0])
    for _ in range(4):
        rig.commit(loop)
    assert [c.rollout_id for c in calls(rig)] == ["a", "b"]
