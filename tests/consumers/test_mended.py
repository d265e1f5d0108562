"""Mistakes that were made once in the groups and the loop; each test failed before its mending."""

from dataclasses import replace

import pytest

from consumers.agents.watermark import read_watermark
from consumers.agents.wishes import Agent, Task
from consumers.agents.worker import Capacity, program_of
from schemas.errors import ProgramFailed, Unavailable
from schemas.messages import (
    CallFailed,
    Event,
    RolloutRequest,
    RolloutStarted,
    Trajectory,
)
from schemas.messages import Task as WireTask
from tests.consumers import test_models as tm
from tests.consumers.test_agents_worker import ASKS, WALKS, answer, ask, calls, killed
from tests.consumers.test_rewards import ended, scored
from tests.consumers.test_rewards import send as send_t
from tests.support.chaos_schedule import Chaos
from tests.support.journals import request
from tests.support.rig import InHand, Rig, role_of, source_of


@pytest.fixture
def rig() -> Rig:
    return Rig()


def test_a_commit_during_a_silent_fold_forgets_nothing(rig: Rig) -> None:
    first = rig.agents("a1")
    ask(rig, "a")
    rig.settle(first)
    for _ in range(3):
        answer(rig, calls(rig)[0], CallFailed("x", "", True))
    rig.settle(first)
    answer(rig, calls(rig)[-1])
    rig.settle(first)
    ask(rig, "late", agent=WALKS)
    for _ in range(600):
        answer(rig, calls(rig)[0])
    rig.settle(first)
    ask(rig, "last", agent=WALKS)
    rig.settle(first)
    rig.log.group("t.agents").committed[rig.topics.events, 0] = (
        rig.log.topics[rig.topics.events][0].end,
        "1;0;",
    )
    rig.log.group("t.agents").committed[rig.topics.requests, 0] = (3, "")
    killed(first)
    second = rig.agents("a2")
    rig.clock.pass_by(2.0)
    second.turn(0.0)  # folds 500 of the events, commits
    killed(second)
    third = rig.agents("a3")
    rig.settle(third)
    assert set(role_of(third).owned[0].journal.open) == {"late", "last"}


@pytest.mark.parametrize("seed", [12, 21, 48, 62, 65, 66])
def test_chaos_small(seed: int) -> None:
    Chaos(seed, small_batches=True).run().check()


def test_trajectories_sent_during_a_full_fold_hold_the_commit(rig: Rig) -> None:
    first = rig.agents("a1")
    ask(rig)
    rig.settle(first)
    answer(rig, calls(rig)[0])
    role_of(first).trajectories.send = lambda *a, **k: None  # never leaves the buffer
    rig.settle(first)
    killed(first)
    assert rig.trajectories() == []
    second = rig.agents("a2")
    role_of(second).trajectories.hold_acks = True
    for _ in range(4):
        rig.commit(second)
    offset, word = rig.log.group("t.agents").committed[rig.topics.events, 0]
    found = read_watermark(word)
    assert found is None or found.low == 0, (offset, word)


def test_a_cancel_read_before_the_takeover_is_obeyed_after_it(rig: Rig) -> None:
    rig = Rig(partitions=2)
    first = rig.agents("a1")
    rig.ask(request("r", WALKS), 1)
    rig.settle(first)
    rig.commit(first)
    second = rig.agents("a2")
    source_of(second)  # owns nothing yet; hears the word
    rig.order("cancel", rollout_id="r")
    role_of(second)._listen()
    killed(first)
    for _ in range(5):
        rig.commit(second)
    assert len(rig.trajectories()) == 1


def test_a_request_too_large_for_the_journal_is_refused(rig: Rig) -> None:
    loop = rig.agents()
    ask(rig, "a")
    task = WireTask("maze", prompt="x" * 999_860)
    rig.ask(RolloutRequest("big", task, ASKS, policy_id="p"))
    ask(rig, "next")
    rig.settle(loop)
    assert [t.code for t in rig.trajectories()] == ["too_large"]
    assert [c.rollout_id for c in calls(rig)] == ["a", "next"]


def test_a_large_request_for_an_unknown_program_is_refused(rig: Rig) -> None:
    loop = rig.agents()
    ask(rig, "a")
    rig.ask(RolloutRequest("big", WireTask("maze", prompt="x" * 999_860), "nobody", policy_id="p"))
    ask(rig, "next")
    rig.settle(loop)
    assert [t.status for t in rig.trajectories()] == ["refused"]
    assert [c.rollout_id for c in calls(rig)] == ["a", "next"]


def test_starts_that_somebody_else_reads_back_do_not_fill_a_worker() -> None:
    rig = Rig(partitions=2)
    first = rig.agents("a1", capacity=Capacity(max_live=4))
    for n in range(4):
        rig.ask(request(f"r{n}", ASKS), 1)
    first.turn(0.0)
    second = rig.agents("a2")
    rig.settle(first, second)
    rig.ask(request("next", ASKS), 0)
    for _ in range(5):
        rig.commit(first, second)
    assert "next" in [c.rollout_id for c in calls(rig)]


def test_a_partition_may_leave_while_rollouts_wait_for_a_quota(rig: Rig) -> None:
    def fails(task: Task) -> Agent:
        raise ValueError
        yield

    loop = rig.agents(
        capacity=Capacity(max_running_per_user=1),
        programs=lambda name: fails if name == "fails" else program_of(name),
    )
    ask(rig, "r0", user="ann")
    ask(rig, "r1", agent="fails", user="ann")
    rig.settle(loop)

    loop.stop()

    assert [c.rollout_id for c in calls(rig)] == ["r0"]
    assert loop.partitions == {}


def test_a_dropped_partition_sends_no_commands(rig: Rig) -> None:
    loop = rig.agents(capacity=Capacity(max_running_per_user=1))
    ask(rig, "r0", user="ann")
    ask(rig, "r1", user="ann")
    rig.settle(loop)
    loop.stop()
    assert [c.rollout_id for c in calls(rig)] == ["r0"]


def test_bad_records_among_good_ones_are_no_storm(rig: Rig) -> None:
    for n in range(480):
        if n % 9 == 8:
            rig.log.append("t.control", None, b"bad", 0)
        else:
            rig.order("pause")
    rig.log.append("t.control", None, b"bad", 0)
    role = InHand("t.control")
    loop = rig.loop(role, rig.log.publisher(), "g")

    loop.turn(0.0)

    assert len(rig.log.all("t.dead.letters")) == 54


def test_a_refused_commit_is_made_again(rig: Rig) -> None:
    rig.order("pause")
    role = InHand("t.control")
    loop = rig.loop(role, rig.log.publisher(), "g")
    loop.turn(0.0)
    role.close()
    members = rig.log.group("g").members
    members.clear()  # the coordinator refuses: a stale epoch
    rig.commit(loop)
    assert source_of(loop).refused == 1
    members.append(source_of(loop))
    rig.commit(loop)
    loop.stop()
    assert rig.committed("g", "t.control") == 1


def test_a_hole_behind_the_last_record_is_committed(rig: Rig) -> None:
    rig.order("pause")
    rig.log.hole("t.control", 0)
    role = InHand("t.control")
    loop = rig.loop(role, rig.log.publisher(), "g")
    loop.turn(0.0)
    role.close()
    for _ in range(4):
        rig.commit(loop)
    assert rig.committed("g", "t.control") == 2


def test_an_abort_closes_every_call_of_its_rollout(rig: Rig) -> None:
    engine = tm.Counting()
    engine.asleep = True
    loop = rig.models(engine)
    first, second = tm.call_of(tries=0), tm.call_of(tries=1)
    tm.send(rig, first, second)
    loop.turn(0.0)
    tm.send(rig, replace(second, kind="abort"))
    loop.turn(0.0)
    rig.commit(loop)
    assert (role_of(loop).in_flight(), rig.committed("t.models.p", rig.topics.calls("p"))) == (0, 3)


def test_a_restarted_server_serves_nothing_before_the_newest_version(rig: Rig) -> None:
    engine = tm.Counting(version=0)
    engine.trouble = Unavailable("no such disk")
    tm.announce(rig, 5)
    loop = rig.models(engine)
    tm.send(rig, tm.call_of())
    rig.settle(loop)
    assert tm.answers(rig) == []


def stuck(trajectory: Trajectory) -> float:
    raise ProgramFailed(
        "stuck", "the scorer did not come back within 30 s"
    )  # what Guard raises in it


def test_a_scorer_that_does_not_come_back_gives_no_reward(rig: Rig) -> None:
    send_t(rig, ended())
    rig.settle(rig.rewards(scorers=["tests.consumers.test_mended:stuck"]))
    assert scored(rig)[0].total is None


def test_a_worker_that_stops_waits_for_its_trajectories(rig: Rig) -> None:
    loop = rig.agents()
    ask(rig)
    rig.settle(loop)
    answer(rig, calls(rig)[0])
    loop.turn(0.0)
    role_of(loop).trajectories.poll = lambda: None  # acks come with the flush only
    loop.turn(0.0)
    loop.turn(0.0)
    flushed = []
    role_of(loop).trajectories.flush = lambda s: flushed.append(s) or 0
    loop.stop()
    assert flushed


def test_accepted_truncation_keeps_the_rollouts_that_are_still_there(rig: Rig) -> None:
    first = rig.agents("a1")
    ask(rig, "r0")
    rig.settle(first)
    answer(rig, calls(rig)[0])
    rig.settle(first)
    for n in (1, 2, 3):
        ask(rig, f"r{n}")
    rig.settle(first)
    rig.commit(first)
    killed(first)
    rig.log.delete_before(rig.topics.events, 0, 4)  # r2 and r3 are still there
    second = rig.agents("a2", accept=True)
    rig.settle(second)
    assert list(role_of(second).owned[0].journal.open) == ["r2", "r3"]


def test_a_gap_of_a_dead_namesake_does_not_stop_a_worker(rig: Rig) -> None:
    for n in range(3):
        ask(rig, f"r{n}")
    for n in (0, 2):  # the second start was given up by the producer, then the process died
        body = RolloutStarted(request(f"r{n}", ASKS), n, n)
        rig.write(rig.topics.events, f"r{n}", Event.decision(f"r{n}", 1, "a1", body), 0)
    loop = rig.agents("a1")
    rig.log.group("t.agents").committed[rig.topics.events, 0] = 0, "1;0;"
    rig.settle(loop)
    assert len({c.rollout_id for c in calls(rig)}) == 3


def test_a_registry_away_at_the_first_command_is_waited_for(rig: Rig) -> None:
    loop = rig.agents()
    ask(rig, "a", agent=WALKS)
    rig.settle(loop)
    rig.registry.away = True
    ask(rig, "b")
    for _ in range(3):
        rig.commit(loop)
    rig.registry.away = False
    for _ in range(3):
        rig.commit(loop)
    assert len(calls(rig)) == 1


def test_a_buried_entry_is_not_buried_again_after_a_restart(rig: Rig) -> None:
    first = rig.agents("a1")
    ask(rig)
    rig.settle(first)
    rig.log.append(rig.topics.events, b"r", b"no magic", 0)
    rig.settle(first)
    rig.commit(first)
    killed(first)
    rig.settle(rig.agents("a2"))
    assert len(rig.log.all(rig.topics.dead_letters)) == 1


def test_a_rollout_held_by_a_quota_is_not_expired_by_a_takeover(rig: Rig) -> None:
    first = rig.agents("a1", capacity=Capacity(max_running_per_user=1))
    ask(rig, "r0", user="ann")
    ask(rig, "r1", user="ann")
    rig.settle(first)
    rig.commit(first)
    killed(first)
    rig.clock.pass_by(500.0)
    second = rig.agents("a2", capacity=Capacity(max_running_per_user=2))
    rig.settle(second)
    late = [c for c in calls(rig) if c.rollout_id == "r1" and c.tries == 0]
    assert late[-1].not_after_ms > rig.clock.now * 1000


def test_a_worker_with_room_for_one_takes_the_next_after_it(rig: Rig) -> None:
    loop = rig.agents(capacity=Capacity(max_live=1))
    ask(rig, "a")
    rig.settle(loop)
    ask(rig, "b")
    answer(rig, calls(rig)[0])
    for _ in range(4):
        rig.commit(loop)
    assert [c.rollout_id for c in calls(rig)] == ["a", "b"]


@pytest.mark.parametrize("seed", range(40))
def test_chaos_with_a_producer_that_asks_again_runs_every_rollout_once(seed: int) -> None:
    chaos = Chaos(seed, again=3.0).run()
    report = chaos.report()

    assert chaos.unexplained(report) == []
    ran, repeated = set(), set()
    for trajectory in chaos.rig.trajectories():
        mine = repeated if trajectory.code == "repeated" else ran
        mine.add((trajectory.rollout_id, trajectory.attempt > 0, trajectory.last_offset))
    assert sorted(rollout_id for rollout_id, _, _ in ran) == sorted(chaos.homes)
    assert all(attempted for _, attempted, _ in ran)
    assert not any(attempted for _, attempted, _ in repeated)
    assert report.ended == report.accepted == len(ran) + len(repeated)


@pytest.mark.parametrize("seed", range(40))
def test_chaos_with_small_workers_and_quotas(seed: int) -> None:
    Chaos(
        seed, rollouts=6, small_batches=True, quotas=(0, 1, 2), most_live=(1, 2, 4000)
    ).run().check()
