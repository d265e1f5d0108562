"""Whole rollouts on the in-memory log, without faults and under every fault that it supports.

A schedule that fails names its seed; `Chaos(seed).run().check()` repeats it.
"""

import logging
import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from random import Random

import pytest
import structlog
from hypothesis import given, settings
from hypothesis import strategies as st

from rollcall.consumers.agents.fold.context import FoldContext
from rollcall.consumers.agents.fold.journal import Journal
from rollcall.consumers.agents.programs import program_of
from rollcall.consumers.audit.audit import audit
from rollcall.consumers.loop.loop import Loop
from rollcall.inference.scripted import ScriptedEngine
from rollcall.inference.text_script import added_by, text_script
from rollcall.schemas.errors import WorkFailed
from rollcall.schemas.messages import (
    CallFailed,
    EnvironmentStep,
    Event,
    ModelCall,
    RolloutStarted,
    ScoredTrajectory,
    Trajectory,
)
from rollcall.schemas.packed import ids_of
from tests.support.chaos_schedule import KINDS, Chaos
from tests.support.lake import crossing, walk
from tests.support.rig import Rig, source_of
from tests.support.tiers import cases, examples

SCHEDULES = int(os.environ.get("ROLLCALL_SCHEDULES", "360"))
"""`make chaos` explores thousands."""
BATCHES = max(1, SCHEDULES // 30)
HOSTED_SCHEDULES = max(16, SCHEDULES // 10)
SMALL_BATCHES = True
"""Whether a silent fold may take several turns."""


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Hundreds of schedules would log a hundred thousand lines."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    yield
    structlog.reset_defaults()


# With servers that are full


@settings(max_examples=examples(8), deadline=None, database=None)
@given(st.integers(0, 2**32), st.integers(0, 8), st.integers(1, 4))
def test_full_servers_cost_time_but_no_retries(seed: int, tenths: int, killed_every: int) -> None:
    """Each call is turned away by chance, also a hundred times; agents and servers are killed."""
    dice, rig = Random(seed), Rig(partitions=2)

    def full(call: ModelCall) -> str:
        if dice.randrange(10) < tenths:
            msg = "all places are taken"
            raise WorkFailed("busy", msg, retriable=True)
        return walk(call)

    def crew(number: int) -> list[Loop]:
        models = rig.models(ScriptedEngine("p", full), f"m{number}")
        return [rig.agents(f"a{number}"), models, rig.environments(f"e{number}"), rig.rewards()]

    limits = {"max_tries": 1, "max_attempts": 1, "rollout_timeout_s": 1e6}
    for number in range(4):
        asked = crossing(number, f"g{number}")
        rig.ask(replace(asked, limits=replace(asked.limits, **limits)), partition=number % 2)
    crews, loops = 1, crew(1)
    for turn in range(4000):
        for loop in loops:
            loop.turn(0.0)
        rig.clock.pass_by(0.2)
        scored = rig.read(rig.topics.scored, ScoredTrajectory)
        if len({each.trajectory.rollout_id for each in scored}) == 4:
            break
        if turn % 40 == 39 and crews < killed_every:
            crews += 1
            for loop in loops:
                source_of(loop).kill()
            loops = crew(crews)
    rig.settle(*loops)

    ended = {(each.rollout_id, each.status, each.failures) for each in rig.trajectories()}
    assert len(ended) == 4  # who is killed may write one again
    assert {each[1:] for each in ended} == {("finished", 0)}
    report = audit(rig)
    assert report.breaches == []
    calls = rig.read(rig.topics.calls("p"), ModelCall)
    spent_s = rig.clock.now - 1_700_000_000.0
    turned_away = len(rig.events(CallFailed))
    # at 0.125, 0.25, 0.5, 1, 2, 4 s and every 4 s at the soonest, at each of 4 places at a time
    assert turned_away <= 4 * crews * (4 * 6 + spent_s / 4)
    assert len({call.command_id for call in calls}) <= turned_away + 4 * 4


# In peace


def test_rollout_crosses_the_lake_and_is_rewarded() -> None:
    rig = Rig()
    loops = [
        rig.agents(),
        rig.models(ScriptedEngine("p", walk)),
        rig.environments(),
        rig.rewards(),
    ]

    rig.ask(crossing(0))
    rig.settle(*loops)

    scored = rig.read(rig.topics.scored, ScoredTrajectory)[0]
    trajectory = scored.trajectory
    assert (scored.total, trajectory.status) == (1.0, "finished")
    assert [step.text for step in trajectory.steps or ()] == ["s0", "s1", "s2", "s5", "s8"]
    said = [m.content for m in (trajectory.sequences or ())[0].messages]
    assert said == ["Cross the lake.", "s0", "R", "s1", "R", "s2", "D", "s5", "D"]


def test_text_script_policy_crosses_the_lake() -> None:
    way = {"s0": "R", "s1": "R", "s2": "D", "s5": "D"}

    def speak(conversation: str) -> str:
        assert conversation.startswith("<|im_start|>system\nCross the lake.<|im_end|>\n")
        return way[conversation.split("<|im_start|>user\n")[-1].partition("<|im_end|>")[0]]

    rig = Rig()
    policy = ScriptedEngine("p", text_script(speak, "speak"), render=added_by)
    rig.ask(crossing(0))
    rig.settle(rig.agents(), rig.models(policy), rig.environments())

    (trajectory,) = rig.trajectories()
    assert [step.text for step in trajectory.steps or ()] == ["s0", "s1", "s2", "s5", "s8"]
    (sequence,) = trajectory.sequences or ()
    assert (
        bytes(ids_of(sequence.token_ids).tolist())
        .decode()
        .endswith("user\ns5<|im_end|>\n<|im_start|>assistant\nD")
    )


def test_raising_script_ends_its_rollout_after_one_call() -> None:
    rig = Rig()
    policy = ScriptedEngine("p", text_script(lambda text: text[10**9], "short"), render=added_by)
    rig.ask(crossing(0))
    rig.settle(rig.agents(), rig.models(policy), rig.environments())

    (trajectory,) = rig.trajectories()
    assert (trajectory.status, len(rig.read(rig.topics.calls("p"), ModelCall))) == ("failed", 1)
    assert "script 'short' raised: IndexError" in trajectory.reason


def test_no_work_is_repeated_without_faults() -> None:
    rig = Rig(partitions=3)
    loops = [
        rig.agents("a1"),
        rig.agents("a2"),
        rig.models(ScriptedEngine("p", walk), "m1"),
        rig.models(ScriptedEngine("p", walk), "m2"),
        rig.environments("e1"),
        rig.environments("e2"),
        rig.rewards(),
    ]

    for number in range(60):
        rig.ask(crossing(number, f"g{number // 8}"), partition=None)
    rig.settle(*loops)

    ids = [c.command_id for c in rig.read(rig.topics.calls("p"), ModelCall)]
    ids += [c.command_id for c in rig.read(rig.topics.steps, EnvironmentStep)]
    assert len(ids) == len(set(ids)) == 60 * 9
    assert len(rig.trajectories()) == 60
    assert len(rig.log.all(rig.topics.events)) == 60 * (9 + 2)
    assert [s.total for s in rig.read(rig.topics.scored, ScoredTrajectory)] == [1.0] * 60


def test_workers_may_join_and_leave_while_rollouts_live() -> None:
    rig = Rig(partitions=4)
    models, environments = rig.models(ScriptedEngine("p", walk)), rig.environments()
    workers = [rig.agents("a0")]
    for number in range(24):
        rig.ask(crossing(number), partition=None)

    for turn in range(60):
        if turn % 7 == 3:
            workers.append(rig.agents(f"a{turn}"))
        if turn % 11 == 10:
            workers.pop(0).stop()
        for loop in (*workers, models, environments):
            loop.turn(0.0)
    rig.settle(*workers, models, environments)

    assert Counter(t.rollout_id for t in rig.trajectories()).keys() == {
        f"r{number}" for number in range(24)
    }
    assert {t.status for t in rig.trajectories()} == {"finished"}


def test_rereading_all_requests_changes_nothing() -> None:
    """A group reset to the beginning starts nothing again: the journal holds the starts."""
    rig = Rig(partitions=2)
    loops = [rig.agents("a1"), rig.models(ScriptedEngine("p", walk)), rig.environments()]
    for number in range(8):
        rig.ask(crossing(number), partition=None)
    rig.settle(*loops)
    rig.commit(*loops)
    calls = len(rig.log.all(rig.topics.calls("p")))

    loops[0].stop()
    group = rig.log.group("t.agents").committed
    for tp in [tp for tp in group if tp[0] == rig.topics.requests]:
        del group[tp]
    rig.settle(rig.agents("a2"), *loops[1:])

    assert len(rig.events(RolloutStarted)) == 8
    assert len(rig.log.all(rig.topics.calls("p"))) == calls
    assert len(rig.trajectories()) == 8


def test_group_without_its_commits_reaches_the_same_history() -> None:
    rig = Rig(partitions=2)
    loops = [rig.agents("a1"), rig.models(ScriptedEngine("p", walk)), rig.environments()]
    for number in range(8):
        rig.ask(crossing(number), partition=None)
    for _ in range(5):
        for loop in loops:
            loop.turn(0.0)
    loops[0].source.kill()  # type: ignore[attr-defined]
    rig.log.groups.clear()

    again = [rig.agents("a2"), rig.models(ScriptedEngine("p", walk), "m2")]
    rig.settle(*again, rig.environments("e2"))

    assert len({t.rollout_id for t in rig.trajectories()}) == 8
    for one in rig.trajectories():
        assert replace(one) in refolded(rig)


def refolded(rig: Rig) -> list[Trajectory]:
    """The effects of folding every journal from its beginning."""
    found: list[Trajectory] = []
    for partition in range(rig.log.partitions(rig.topics.events)):
        journal = Journal(partition, FoldContext(program_of, Random), "refold")
        for record in rig.log.all(rig.topics.events):
            if record.partition == partition:
                event = rig.codec.decode(record.value, Event)
                ended = journal.apply_event(event, record.offset, record.timestamp_ms).ended
                found += [ended] if ended else []
    return found


# Under faults


@pytest.mark.parametrize("batch", cases(range(BATCHES), 2))
def test_whatever_dies_every_rollout_has_one_end_and_one_history(batch: int) -> None:
    faults: Counter[str] = Counter()
    for seed in range(batch, SCHEDULES, BATCHES):
        chaos = Chaos(seed, small_batches=SMALL_BATCHES)
        try:
            chaos.run(steps=150).check()
        except Exception as error:
            error.add_note(f"Chaos({seed}, small_batches={SMALL_BATCHES}).run(150).check()")
            raise
        faults += chaos.faults

    assert faults["killed in a turn"] > 20
    assert faults["expelled"] > 5


@pytest.mark.parametrize("seed", cases(range(40), 8))
def test_clocks_one_hour_apart_change_no_order(seed: int) -> None:
    """Deadlines come early, or late; their decisions form one history."""
    Chaos(seed, skews_s=(0.0, 0.0, -3600.0, 3600.0)).run(steps=150).check()


def test_audit_of_a_growing_log_reports_no_pending_work_as_missing() -> None:
    audits = pending = 0
    for seed in range(40):
        chaos = Chaos(seed, small_batches=bool(seed % 2))
        for kind in KINDS:
            chaos.join(kind)
        for step in range(150):
            chaos.act()
            if step % 25 == seed % 25:
                report = audit(chaos.rig)
                assert chaos.unexplained(report) == [], f"Chaos({seed}), step {step}"
                audits, pending = audits + 1, pending + report.pending

    assert audits == 240
    assert pending > 100


@pytest.mark.parametrize("seed", cases(range(24), 6))
def test_programs_that_handle_completions_as_they_come_have_one_history(seed: int) -> None:
    Chaos(seed, programs=("react", "tests.journals.programs:as_they_come")).run(150).check()


@pytest.mark.parametrize("batch", cases(range(2)))
def test_whatever_dies_agents_of_others_live_their_history_again(batch: int) -> None:
    faults, restarts = Counter[str](), 0
    for seed in range(batch, HOSTED_SCHEDULES, 2):
        chaos = Chaos(seed, hosted=0.8)
        try:
            chaos.run(steps=150).end().check()
        except Exception as error:
            error.add_note(f"Chaos({seed}, hosted=0.8).run(150).end().check()")
            raise
        faults, restarts = faults + chaos.faults, restarts + chaos.restarts()

    assert faults["killed in a turn"] > HOSTED_SCHEDULES // 4
    assert restarts > HOSTED_SCHEDULES // 8


@pytest.mark.parametrize("seed", [12, 21, 48, 62, 65, 66])
def test_schedules_with_small_batches_end_in_one_history(seed: int) -> None:
    Chaos(seed, small_batches=True).run().check()


@pytest.mark.parametrize("seed", cases(range(40), 8))
def test_every_rollout_ends_in_one_history_under_changing_quotas(seed: int) -> None:
    """Rates and quotas come and go while workers of all kinds do."""
    Chaos(seed, rollouts=6, limited=4.0, quotas=(0, 1)).run().check()


def test_first_command_lost_with_its_owner_after_the_deadline_is_repeated() -> None:
    """The heir defers the start for its user's quota, and finds that command given up."""
    Chaos(204, small_batches=False, rollouts=6, limited=4.0, quotas=(0, 1)).run().check()


def test_deferred_rollout_that_had_begun_resumes_completely() -> None:
    """One of two first commands died with its owner, the other one is answered later."""
    Chaos(199, rollouts=8, limited=6.0, quotas=(0, 1, 2), most_live=(1, 2, 4000)).run().check()


@pytest.mark.parametrize("seed", cases(range(40), 8))
def test_repeated_requests_run_every_rollout_once(seed: int) -> None:
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


@pytest.mark.parametrize("seed", cases(range(40), 8))
def test_small_workers_and_quotas_end_in_one_history(seed: int) -> None:
    Chaos(
        seed, rollouts=6, small_batches=True, quotas=(0, 1, 2), most_live=(1, 2, 4000)
    ).run().check()
