"""User quotas: rollouts at once, calls a second."""

from collections.abc import Iterable
from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rollcall.consumers.agents.effects import Agent, CallModel, Finish, Task
from rollcall.consumers.agents.fold.outstanding import PATIENCE
from rollcall.consumers.agents.quotas.call_pacing import MOST_BUCKETS, CallPacing, QuotaShare
from rollcall.consumers.agents.worker import Capacity
from rollcall.consumers.audit.audit import audit
from rollcall.consumers.log.protocols import Record
from rollcall.consumers.loop.loop import Loop
from rollcall.consumers.loop.quota_table import QuotaTable
from rollcall.producers.control import send_quota
from rollcall.schemas.messages import (
    CallFailed,
    EnvironmentStepped,
    Limits,
    Message,
    ModelAnswered,
    ModelCall,
    Quota,
    RolloutStarted,
)
from tests.support.hand_answers import answer, ask, calls, killed, steps
from tests.support.programs import TWICE, WALKS
from tests.support.rig import Rig, role_of
from tests.support.tiers import examples

PATIENT = Limits(call_timeout_s=200_000.0, step_timeout_s=200_000.0, rollout_timeout_s=400_000.0)


@pytest.fixture
def rig() -> Rig:
    return Rig()


def limit(rig: Rig, user: str = "ann", **limits: float) -> None:
    send_quota(rig.pen, rig.codec, rig.topics, user, Quota(user, **limits) if limits else None)  # type: ignore[arg-type]


def ask_many(rig: Rig, count: int, user: str = "ann", agent: str = "", first: int = 0) -> None:
    for n in range(first, first + count):
        ask(rig, f"{user}{n}", user=user, limits=PATIENT, **({"agent": agent} if agent else {}))


def sent(rig: Rig) -> list[str]:
    """The rollouts of the calls that were sent, in order."""
    return [call.rollout_id for call in calls(rig) if call.kind == "sample"]


def turn(rig: Rig, *loops: Loop) -> None:
    """Let records be read and due work be done."""
    rig.commit(*loops)
    rig.settle(*loops)


# At once


def test_a_users_quota_applies_to_that_user_only(rig: Rig) -> None:
    limit(rig, running=2)
    loop = rig.agents()
    ask_many(rig, 4)
    ask_many(rig, 4, "bob")
    rig.settle(loop)

    assert sorted(sent(rig)) == ["ann0", "ann1", "bob0", "bob1", "bob2", "bob3"]
    assert len(rig.events(RolloutStarted)) == 8


def test_a_raised_quota_starts_waiting_rollouts_a_lowered_one_stops_none(
    rig: Rig,
) -> None:
    limit(rig, running=1)
    loop = rig.agents()
    ask_many(rig, 6)
    rig.settle(loop)
    assert sent(rig) == ["ann0"]

    limit(rig, running=4)
    turn(rig, loop)
    assert sent(rig) == ["ann0", "ann1", "ann2", "ann3"]

    limit(rig, running=2)
    turn(rig, loop)
    for n in (0, 1):
        answer(rig, calls(rig)[n])
    turn(rig, loop)
    assert len(sent(rig)) == 4
    assert len(role_of(loop).owned[0].journal.open) == 4

    answer(rig, calls(rig)[2])
    turn(rig, loop)
    assert sent(rig)[4:] == ["ann4"]


def test_a_revoked_quota_falls_back_to_the_default(rig: Rig) -> None:
    limit(rig, running=1)
    loop = rig.agents(capacity=Capacity(quota=Quota("", running=3)))
    ask_many(rig, 5)
    rig.settle(loop)

    limit(rig)
    turn(rig, loop)

    assert sent(rig) == ["ann0", "ann1", "ann2"]


def both(task: Task) -> Agent:
    yield [CallModel([Message("user", way)]) for way in ("left", "right")]
    yield Finish()


def test_a_takeover_sends_the_rest_of_a_held_rollouts_first_turn(
    rig: Rig,
) -> None:
    # Given an owner that dies when one of two first calls of a rollout is on its way
    limit(rig, running=1)
    owner = rig.agents("a1")
    ask_many(rig, 2, agent=f"{__name__}:both")
    rig.settle(owner)
    rig.commit(owner)
    limit(rig, running=2)
    owner.turn(0.0)
    rig.clock.pass_by(0.5)
    while "ann1" not in sent(rig):
        owner.turn(0.0)
    killed(owner)
    left, right = calls(rig)[2:]
    rig.log.topics[rig.topics.calls("p")][0].records[3] = None

    # When its successor holds that rollout back, and the one call is answered
    limit(rig, running=1)
    heir = rig.agents("a2")
    rig.settle(heir)
    assert right.command_id not in {call.command_id for call in calls(rig)}
    answer(rig, left)
    rig.settle(heir)

    # Then the other one is sent, and not when its deadline has passed
    assert calls(rig)[-1].command_id == right.command_id


def test_a_running_rollout_is_counted_again_after_a_takeover(rig: Rig) -> None:
    limit(rig, running=2)
    first = rig.agents("a1")
    ask_many(rig, 4)
    rig.settle(first)
    rig.commit(first)
    killed(first)
    limit(rig, running=1)
    second = rig.agents("a2")
    turn(rig, second)
    assert sent(rig) == ["ann0", "ann1", "ann0"]

    answer(rig, calls(rig)[0])
    late = calls(rig)[1]
    answer(rig, late, CallFailed("overloaded", "later", True))
    turn(rig, second)

    assert sent(rig)[3:] == ["ann1"]  # its next try; ann2 waits as long as it runs


def test_no_rollout_begins_before_the_quotas_are_read(rig: Rig) -> None:
    limit(rig, running=1)
    loop = rig.agents()
    table = role_of(loop).quotas.table
    table.known, table.follow = False, lambda: set()
    ask_many(rig, 2)
    for _ in range(3):
        loop.turn(0.0)
    assert sent(rig) == []

    del table.follow
    turn(rig, loop)

    assert sent(rig) == ["ann0"]


def test_an_unreadable_quota_is_buried_by_one_worker(rig: Rig) -> None:
    loops = [rig.agents("a1"), rig.agents("a2")]
    rig.log.append(rig.topics.quotas, b"ann", b"rubbish")
    for _ in range(3):
        turn(rig, *loops)

    letters: list[Record] = rig.log.all(rig.topics.dead_letters)
    assert [letter.value for letter in letters] == [b"rubbish"]


# Shares


@given(
    limit=st.integers(1, 10_000),
    owners=st.lists(st.integers(0, 5), min_size=1, max_size=48),
)
def test_worker_shares_add_up_to_the_quota_with_at_least_one_each(
    limit: int, owners: list[int]
) -> None:
    held = [{n for n, at in enumerate(owners) if at == owner} for owner in set(owners)]
    workers = []
    for partitions in held:
        workers.append(QuotaShare())
        workers[-1].held, workers[-1].partitions = partitions, len(owners)
    parts = [worker.part_of(limit) for worker in workers]

    assert sum(parts) <= limit + sum(part == 1 for part in parts)
    assert sum(parts) >= min(limit, len(parts))
    if all(part > 1 for part in parts):
        assert sum(parts) == limit
    assert sum(worker.rate_of(2.5) for worker in workers) == pytest.approx(2.5)


def test_two_workers_share_a_quota_and_the_survivor_has_all() -> None:
    rig = Rig(partitions=2)
    limit(rig, running=4, calls_per_s=10.0)
    first, second = rig.agents("a1"), rig.agents("a2")
    rig.settle(first, second)
    ask_many(rig, 20)
    turn(rig, first, second)
    assert len(set(sent(rig))) == 4

    killed(second)
    turn(rig, first)
    turn(rig, first)
    assert len(set(sent(rig))) == 4
    for call in calls(rig):
        answer(rig, call)
    turn(rig, first)

    assert len(set(sent(rig))) == 8


# Calls a second


def test_calls_above_the_rate_are_delayed_in_order_and_none_is_dropped(rig: Rig) -> None:
    limit(rig, calls_per_s=2.0)
    loop = rig.agents()
    ask_many(rig, 6)
    ask_many(rig, 3, "bob")
    rig.settle(loop)
    assert [name for name in sent(rig) if name[0] == "a"] == ["ann0", "ann1"]
    assert len([name for name in sent(rig) if name[0] == "b"]) == 3

    for _ in range(4):
        rig.clock.pass_by(0.5)
        rig.settle(loop)

    assert [name for name in sent(rig) if name[0] == "a"] == [f"ann{n}" for n in range(6)]


def test_the_deadline_of_a_paced_call_starts_at_its_sending(rig: Rig) -> None:
    limit(rig, calls_per_s=0.01)
    loop = rig.agents()
    for n in range(2):
        ask(rig, f"ann{n}", user="ann", limits=Limits(call_timeout_s=10.0))
    rig.settle(loop)
    answer(rig, calls(rig)[0])
    for _ in range(9):
        rig.clock.pass_by(10.0)
        rig.settle(loop)
    assert rig.events(CallFailed) == []
    assert sent(rig) == ["ann0"]

    rig.clock.pass_by(10.0)
    rig.settle(loop)
    late = calls(rig)[1]
    assert late.not_after_ms == int((rig.clock.now + 10.0) * 1000)
    rig.clock.pass_by(PATIENCE * 10.0 - 1)
    rig.settle(loop)
    assert rig.events(CallFailed) == []
    rig.clock.pass_by(2.0)
    turn(rig, loop)

    assert [(e.rollout_id, e.body.code) for e in rig.events(CallFailed)] == [("ann1", "deadline")]  # type: ignore[union-attr]


def test_an_ended_rollout_drops_its_paced_calls(rig: Rig) -> None:
    limit(rig, calls_per_s=1.0)
    loop = rig.agents()
    ask_many(rig, 4)
    rig.settle(loop)
    for n in (1, 2):
        rig.order("cancel", rollout_id=f"ann{n}")
    pacing = role_of(loop).quotas.pacing
    pacing._clock = lambda: rig.clock.now - 1.1  # no other turn comes up meanwhile
    turn(rig, loop)
    assert pacing.held.total() == 1

    pacing._clock = rig.clock
    turn(rig, loop)

    assert sent(rig) == ["ann0", "ann3"]
    assert pacing.held.total() == 0
    assert pacing._places == {}


def test_a_takeover_paces_calls_that_were_never_sent(rig: Rig) -> None:
    limit(rig, calls_per_s=1.0)
    first = rig.agents("a1")
    ask_many(rig, 3, agent=TWICE)
    rig.settle(first)
    for _ in range(2):
        rig.clock.pass_by(1.0)
        rig.settle(first)
    for call in calls(rig):
        answer(rig, call)
    rig.settle(first)
    rig.commit(first)
    waiting = 6 - len(sent(rig))
    assert waiting
    killed(first)

    second = rig.agents("a2")
    rig.settle(second)
    for _ in range(8):
        rig.clock.pass_by(1.0)
        rig.settle(second)
        for call in calls(rig)[3:]:
            answer(rig, call)
    turn(rig, second)

    assert [t.status for t in rig.trajectories()] == ["finished"] * 3
    assert rig.events(CallFailed) == []


def test_a_takeover_resends_paced_calls_after_the_rate_is_revoked(rig: Rig) -> None:
    limit(rig, calls_per_s=0.01)
    first = rig.agents("a1")
    ask(rig, "ann", TWICE, user="ann", limits=PATIENT)
    rig.settle(first)
    answer(rig, calls(rig)[0])
    rig.settle(first)
    rig.commit(first)
    killed(first)
    assert len(sent(rig)) == 1
    limit(rig)

    rig.settle(rig.agents("a2"))

    assert len(sent(rig)) == 2


def test_a_takeover_repeats_no_call_if_none_was_held_back(rig: Rig) -> None:
    limit(rig, running=5, calls_per_s=100.0)
    first = rig.agents("a1")
    ask_many(rig, 3, agent=TWICE)
    turn(rig, first)
    rig.commit(first)
    killed(first)

    second = rig.agents("a2")
    turn(rig, second)

    assert len(sent(rig)) == 3


def test_a_revoked_rate_releases_all_calls_at_once(rig: Rig) -> None:
    limit(rig, calls_per_s=0.01)
    loop = rig.agents()
    ask_many(rig, 5)
    rig.settle(loop)
    assert len(sent(rig)) == 1

    limit(rig)
    turn(rig, loop)

    assert sent(rig) == [f"ann{n}" for n in range(5)]


def test_environment_steps_are_not_paced(rig: Rig) -> None:
    limit(rig, calls_per_s=0.01)
    loop = rig.agents()
    ask_many(rig, 5, agent=WALKS)
    rig.settle(loop)

    assert len(steps(rig)) == 5


def test_a_paced_call_that_is_already_answered_is_not_sent(rig: Rig) -> None:
    """The previous owner had sent it after all."""
    limit(rig, calls_per_s=0.01)
    loop = rig.agents()
    ask_many(rig, 2)
    rig.settle(loop)
    _, (waits,) = (list(o.attempt.outstanding.values()) for o in
                   role_of(loop).owned[0].journal.open.values())  # fmt: skip
    rollout = role_of(loop).owned[0].journal.open["ann1"]
    (unsent,) = rollout.outputs([waits], silent=False)

    answer(rig, unsent)
    rig.settle(loop)
    rig.clock.pass_by(200.0)
    turn(rig, loop)

    assert sent(rig) == ["ann0"]
    assert [t.rollout_id for t in rig.trajectories()] == ["ann1"]


def test_the_audit_is_clean_while_calls_wait_and_afterwards(rig: Rig) -> None:
    limit(rig, calls_per_s=1.0, running=3)
    loop = rig.agents()
    ask_many(rig, 4, agent=TWICE)
    turn(rig, loop)
    rig.clock.pass_by(2.0)
    turn(rig, loop)
    for call in calls(rig):
        answer(rig, call)
    rig.settle(loop)
    rig.commit(loop)
    assert role_of(loop).quotas.pacing.held.total()
    assert audit(rig).breaches == []

    for n in range(4):
        rig.order("cancel", rollout_id=f"ann{n}")
    turn(rig, loop)
    rig.commit(loop)

    assert audit(rig, drained=True).found.keys() <= {"I8"}  # no scores


def test_full_buckets_of_idle_users_are_dropped(rig: Rig) -> None:
    table = QuotaTable(rig.log, rig.codec, rig.topics, Quota("", calls_per_s=1.0))
    shares = QuotaShare()
    shares.held, shares.partitions = {0}, 1
    pacing = CallPacing(table, shares, rig.clock)

    for n in range(5 * MOST_BUCKETS):
        assert pacing._may_go(f"user{n}")
        rig.clock.pass_by(0.01)

    assert len(pacing._buckets) <= MOST_BUCKETS
    assert not pacing._may_go(f"user{n}")  # one that is not full is kept


# Any history


@dataclass
class Owner:
    """One worker after another on one journal, checked against the users' quotas."""

    rig: Rig
    quotas: dict[str, Quota] = field(default_factory=dict)
    asked: int = 0
    began: set[str] = field(default_factory=set)
    """The rollouts whose first call was seen."""
    mine: int = 0
    """Calls up to here are of earlier workers."""
    born: int = 0

    def __post_init__(self) -> None:
        self.join()

    def join(self) -> None:
        self.born += 1
        self.mine = len(sent(self.rig))
        self.loop = self.rig.agents(f"a{self.born}")

    def work(self) -> None:
        """Let the worker work; each rollout it starts must fit into the quota."""
        for _ in range(3):
            turn(self.rig, self.loop)
            self.check()

    def check(self) -> None:
        """What began since the last look had room beside what is known to have begun.

        That is what was answered, and what this worker has sent; which of the first commands of its
        predecessors are under way, the journal does not tell.
        """
        names = sent(self.rig)
        known = {e.rollout_id for e in self.rig.events(ModelAnswered)} | {*names[self.mine :]}
        ended = {t.rollout_id for t in self.rig.trajectories()}
        new = set(names) - self.began
        self.began |= new
        for user in {name[:3] for name in new} & self.quotas.keys():
            quota, his = self.quotas[user], [name for name in known if name.startswith(user)]
            runs = [name for name in his if name not in ended]
            assert len(runs) <= quota.running, (runs, quota)

    # The possible operations

    def ask(self, user: str) -> None:
        ask(self.rig, f"{user}{self.asked}", user=user, limits=PATIENT)
        self.asked += 1

    def limit(self, user: str, running: int) -> None:
        """Called only while no rollout runs: later starts count under the new limit."""
        self.work()
        self.quotas[user] = Quota(user, running)
        send_quota(self.rig.pen, self.rig.codec, self.rig.topics, user, self.quotas[user])
        self.rig.commit(self.loop)

    def answer(self, which: int) -> None:
        open_ = self.open_calls()
        if open_:
            answer(self.rig, open_[which % len(open_)])

    def open_calls(self) -> list[ModelCall]:
        ended = {t.rollout_id for t in self.rig.trajectories()}
        return [c for c in calls(self.rig) if c.kind == "sample" and c.rollout_id not in ended]

    def cancel(self, which: int) -> None:
        starts = self.rig.events(RolloutStarted)
        if starts:
            self.rig.order("cancel", rollout_id=starts[which % len(starts)].rollout_id)

    def pass_by(self, minutes: int) -> None:
        self.rig.clock.pass_by(60.0 * minutes)

    def die(self, gently: bool) -> None:
        if gently:
            self.loop.stop(0.0)
        else:
            killed(self.loop)
        self.join()

    def finish(self) -> None:
        """Answer all commands until every rollout has ended."""
        for _ in range(3 * self.asked + 10):
            if len({t.rollout_id for t in self.rig.trajectories()}) == self.asked:
                return
            for call in self.open_calls():
                answer(self.rig, call)
            self.pass_by(20)
            self.work()
        msg = f"{len(self.rig.trajectories())} of {self.asked} came to an end"
        raise AssertionError(msg)


USERS = st.sampled_from(("ann", "bob"))
HAPPENS = st.one_of(
    st.tuples(st.just("ask"), USERS),
    st.tuples(st.just("ask"), USERS),
    st.tuples(st.just("answer"), st.integers(0, 9)),
    st.tuples(st.just("limit"), USERS, st.integers(1, 3)),
    st.tuples(st.just("pass_by"), st.sampled_from((1, 25, 61))),
    st.tuples(st.just("cancel"), st.integers(0, 9)),
    st.tuples(st.just("die"), st.booleans()),
    st.tuples(st.just("work")),
)


@settings(
    max_examples=examples(40),
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
@given(happens=st.lists(HAPPENS, min_size=5, max_size=30))
def test_no_quota_is_exceeded_and_every_rollout_ends(
    happens: Iterable[tuple[str, ...]],
) -> None:
    rig = Rig()
    owner = Owner(rig)
    for name, *words in happens:
        getattr(owner, name)(*words)
        owner.check()
    owner.work()

    owner.finish()

    assert len(rig.events(EnvironmentStepped)) == 0
