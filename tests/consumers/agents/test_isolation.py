"""A bad record affects one rollout only: it ends once, and the others continue."""

import json
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from random import Random
from typing import Any, NoReturn

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollcall.consumers.agents.effects import Agent, CallModel, Finish, Task, user
from rollcall.consumers.agents.fold.context import FoldContext
from rollcall.consumers.agents.programs import program_digest
from rollcall.consumers.agents.watermark import Watermark
from rollcall.consumers.audit.audit import audit
from rollcall.consumers.history.waiting.open_work import OpenWork
from rollcall.consumers.history.waiting.waits import waits_of
from rollcall.consumers.loop.loop import Loop
from rollcall.consumers.loop.time_guard import SIGNAL, TimeGuard
from rollcall.inference.scripted import ScriptedEngine
from rollcall.producers.publisher import VALUE_LIMIT_BYTES
from rollcall.schemas.bounds import NAME_BYTES
from rollcall.schemas.interrupts import interrupt
from rollcall.schemas.messages import (
    CallFailed,
    Event,
    Limits,
    RolloutFinished,
    RolloutRefused,
    RolloutRequest,
    RolloutStarted,
    Sampling,
)
from tests.support.journals import Hand, request
from tests.support.programs import ASKS, asks
from tests.support.rig import Rig, source_of
from tests.support.rubbish_program import RUBBISH, YIELDED
from tests.support.tiers import examples

HERE = "tests.consumers.agents.test_isolation"
TALKS = f"{HERE}:talks"
NAN, INF = float("nan"), float("inf")


def talks(task: Task) -> Agent:
    """Produces a result too large for its record."""
    yield CallModel([user("x")])
    yield Finish("\u4e2d" * 150_000)


def clings(task: Task) -> Agent:
    """Ignores every attempt to end it."""
    yield CallModel([user(task.prompt)])
    while True:
        with suppress(Exception):
            time.sleep(0.001)  # as a user's program may


@pytest.fixture(autouse=True)
def _own_interrupts() -> Iterator[None]:
    """As in a worker process: a KeyboardInterrupt raised by a program is not Ctrl-C."""
    before = signal.signal(signal.SIGINT, interrupt)
    yield
    signal.signal(signal.SIGINT, before)


def among_others(*bad: RolloutRequest, rig: Rig | None = None, started: bool = False) -> Rig:
    """Run bad requests among good ones, and after a restart; nobody may fall.

    They may have been started by an older worker, which was killed before it said how far it came.
    """
    rig = rig or Rig()
    for each in (*bad, request("before", ASKS)) if started else (request("before", ASKS), *bad):
        rig.ask(each)
    rig.ask(request("after", ASKS))
    for number, each in enumerate(bad if started else ()):
        body = RolloutStarted(each, number, number)
        event = Event.decision(each.rollout_id, 1, "older", body)
        rig.write(rig.topics.events, each.rollout_id, event, 0)
    models = rig.models(ScriptedEngine("p", lambda call: "yes"))
    environments = rig.environments()
    for name in ("a1", "a2"):
        agents = rig.agents(name)
        live(rig, agents, models, environments)
        source_of(agents).kill()
    return rig


def live(rig: Rig, *loops: Loop) -> None:
    for _ in range(4):
        rig.settle(*loops)
        rig.commit(*loops)


def ends(rig: Rig) -> dict[str, tuple[str, str]]:
    """How each rollout ended; each may end only once."""
    found = {t.rollout_id: (t.status, t.code) for t in rig.trajectories()}
    assert len(found) == len(rig.trajectories())
    return found


def assert_sound(rig: Rig) -> None:
    """The good rollouts are done, none is open, and a second reader finds no fault."""
    report = audit(rig)
    assert report.open == 0
    assert dict(report.found) == {}
    assert {name: ends(rig).get(name) for name in GOOD} == dict.fromkeys(GOOD, ("finished", ""))


GOOD = {"before", "after"}


# At the door


@pytest.mark.parametrize(
    "bad",
    [
        {"limits": Limits(call_timeout_s=INF)},
        {"limits": Limits(rollout_timeout_s=NAN)},
        {"limits": Limits(step_timeout_s=1e17)},
        {"limits": Limits(rollout_timeout_s=90 * 86_400.0)},
        {"sampling": Sampling(temperature=NAN)},
        {"group_id": "g" * 600_000},
        {"user": "u" * 1000},
        {"sampling_seed": "t" * 1000},
    ],
    ids=lambda bad: next(iter(bad)),
)
def test_a_request_with_limits_out_of_bounds_is_refused(bad: dict[str, Any]) -> None:
    rig = among_others(request("bad", ASKS, **bad))

    (refused,) = rig.events(RolloutRefused)
    assert (refused.rollout_id, refused.body.code) == ("bad", "refused")
    assert next(iter(bad)) in refused.body.reason
    assert ends(rig)["bad"] == ("refused", "refused")
    assert_sound(rig)


def test_an_overlong_id_is_refused_under_its_digest() -> None:
    rig = among_others(request("r" * 400_000, ASKS))

    (refused,) = rig.events(RolloutRefused)
    assert refused.rollout_id.startswith("long-")
    assert "400,000" in refused.body.reason
    assert len(refused.rollout_id) < NAME_BYTES
    assert_sound(rig)


def test_an_unreadable_request_with_a_megabyte_key_is_refused() -> None:
    rig = Rig()
    rig.log.append(rig.topics.requests, b"k" * 1_000_100, b"garbage", 0)

    among_others(rig=rig)

    (refused,) = rig.events(RolloutRefused)
    assert (refused.rollout_id[:5], refused.body.code) == ("long-", "unreadable")
    assert_sound(rig)


# Started by a release that let it pass


@pytest.mark.parametrize(
    "limits",
    [
        Limits(call_timeout_s=INF),
        Limits(rollout_timeout_s=NAN),
        Limits(call_timeout_s=1e17, step_timeout_s=-INF),
        Limits(rollout_timeout_s=1e300),
        Limits(max_turns=-(2**31), max_tries=-1, max_attempts=-1),
    ],
)
def test_a_start_with_limits_out_of_bounds_is_still_folded(limits: Limits) -> None:
    rig = among_others(request("bad", ASKS, limits=limits), started=True)

    assert ends(rig)["bad"][0] in ("finished", "failed", "timed_out")
    assert_sound(rig)


def test_endless_waits_are_listed() -> None:
    hand = Hand(asks)
    hand.start(request(agent="asks", limits=Limits(call_timeout_s=INF, rollout_timeout_s=NAN)))
    work = OpenWork(Rig().topics, hand.journal.world)
    work.begin(3, Watermark(0), 0)

    for entry in hand.entries:
        work.take_event(entry.event, 3, entry.offset, entry.at_ms)

    (wait,) = waits_of(work)
    assert wait.rollout_id == "r"


# On its way


@pytest.mark.parametrize("move", YIELDED)
def test_a_misbehaving_program_ends_only_its_own_rollout(move: str) -> None:
    config = json.dumps({"moves": ["call", move], "clings": True})

    rig = among_others(request("bad", RUBBISH, agent_config=config))

    assert ends(rig)["bad"][0] in ("finished", "failed")
    assert len(rig.events(RolloutFinished)) == 3
    assert_sound(rig)


moves = st.lists(st.sampled_from(sorted(YIELDED)), max_size=4)
numbers = st.one_of(st.floats(), st.sampled_from([0.0, 1.0, 120.0, 1e17, -1.0]))
limits_drawn = st.builds(
    Limits,
    max_turns=st.integers(-1, 4),
    max_tries=st.integers(-1, 3),
    max_attempts=st.integers(-1, 3),
    call_timeout_s=numbers,
    step_timeout_s=numbers,
    rollout_timeout_s=numbers,
)


@settings(max_examples=examples(40), deadline=None)
@given(
    drawn=st.lists(st.tuples(moves, limits_drawn, numbers), min_size=1, max_size=3),
    started=st.booleans(),
)
def test_no_program_or_limit_ends_a_worker_or_another_rollout(
    drawn: list[tuple[list[str], Limits, float]], started: bool
) -> None:
    bad = [
        request(
            f"bad{n}",
            RUBBISH,
            agent_config=json.dumps({"moves": each, "clings": n % 2}),
            limits=limits,
            sampling=Sampling(temperature=heat),
        )
        for n, (each, limits, heat) in enumerate(drawn)
    ]

    rig = among_others(*bad, started=started)

    assert ends(rig).keys() == {each.rollout_id for each in bad} | GOOD
    assert_sound(rig)


def test_a_bare_trajectory_that_is_still_too_large_loses_its_result() -> None:
    asked = request("bad", TALKS)

    rig = among_others(replace(asked, task=replace(asked.task, prompt="a" * 600_000)))

    (bare,) = [t for t in rig.trajectories() if t.rollout_id == "bad"]
    assert (bare.status, bare.code, bare.result, bare.sequences) == (
        "finished",
        "too_large",
        "",
        None,
    )
    assert bare.request is not None
    assert bare.request.task.prompt == "a" * 600_000
    assert_sound(rig)


def test_a_trajectory_filled_by_its_request_loses_the_task() -> None:
    asked, rig = request("bad", ASKS, group_id="g", run_id="run"), Rig()
    body = RolloutStarted(asked, 1, 1, program_digest(asks), int(rig.clock.now * 1000))
    start = rig.codec.encode("t", Event.decision("bad", 1, "a1", body))
    room = VALUE_LIMIT_BYTES - len(start)

    among_others(replace(asked, task=replace(asked.task, prompt="a" * room)), rig=rig)

    (bare,) = [t for t in rig.trajectories() if t.rollout_id == "bad"]
    assert bare.request is not None
    assert (bare.request.task.prompt, bare.request.group_id) == ("", "g")
    assert_sound(rig)


def test_sampling_out_of_bounds_in_a_program_fails_its_call() -> None:
    config = json.dumps({"moves": ["hot", "call", "finish"]})

    rig = among_others(request("r", RUBBISH, agent_config=config))

    (failed,) = rig.events(CallFailed)
    assert failed.body.code == "out_of_bounds"
    assert "sampling.temperature" in failed.body.message
    assert ends(rig)["r"] == ("finished", "")


def test_a_program_that_never_yields_ends_only_its_own_rollout() -> None:
    rig, before = Rig(), signal.getsignal(SIGNAL)
    guard = TimeGuard("the program", 0.05)
    guard.watch()
    for name, agent in (("before", ASKS), ("bad", f"{HERE}:clings"), ("after", ASKS)):
        rig.ask(request(name, agent))

    live(rig, rig.agents(guard=guard), rig.models(ScriptedEngine("p", lambda call: "yes")))

    signal.signal(SIGNAL, before if before is not signal.SIG_DFL else signal.SIG_IGN)
    assert ends(rig).pop("bad") == ("failed", "stuck")
    assert {name: ends(rig).get(name) for name in GOOD} == dict.fromkeys(GOOD, ("finished", ""))


# The fold's own wall


def test_an_internal_error_of_the_fold_ends_only_its_rollout() -> None:
    def fault(name: str) -> NoReturn:
        msg = f"a fault with {name} \udce9"
        raise RuntimeError(msg)

    hand = Hand(asks)
    hand.journal.world = FoldContext(fault, Random)

    (decision,) = hand.start("asks")

    assert isinstance(decision, Event)
    assert (decision.body.status, decision.body.code) == ("failed", "broken")
    assert "RuntimeError: a fault with asks ?" in decision.body.reason
    assert hand.journal.open["r"].decision == decision
    assert hand.end(decision).status == "failed"


def test_ctrl_c_in_a_program_does_not_end_its_rollout() -> None:
    def interrupted(task: Task) -> Agent:
        signal.raise_signal(signal.SIGINT)
        yield CallModel([user("x")])

    hand = Hand(interrupted)

    with pytest.raises(KeyboardInterrupt):
        hand.start("interrupted")
