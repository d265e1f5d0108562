"""Requests and records that an agents worker refuses, cannot read or cannot write."""

from dataclasses import replace
from typing import Any

import pytest

from rollcall.compose.request_checks import RequestChecks
from rollcall.consumers.agents.effects import Agent, CallModel, Task, user
from rollcall.consumers.audit.audit import audit
from rollcall.inference.scripted import ScriptedEngine
from rollcall.schemas.errors import Refused
from rollcall.schemas.messages import (
    CallFailed,
    Event,
    RolloutRefused,
    RolloutRequest,
    RolloutStarted,
    ScoredTrajectory,
)
from rollcall.schemas.messages import Task as WireTask
from tests.support.hand_answers import answer, ask, calls, killed
from tests.support.journals import request, said
from tests.support.programs import ASKS
from tests.support.resent import send_again
from tests.support.rig import Rig, role_of

INVALID: list[tuple[dict[str, Any], str]] = [
    ({"agent": "raect"}, "unknown program 'raect'; did you mean 'react'?"),
    ({"agent": "nowhere:program"}, "No module named 'nowhere'"),
    ({"agent": "tests.support.broken_module:p"}, "no such weather"),
    ({"group_size": 0}, "group_size must be from 1 to 2147483647, found 0"),
]


@pytest.mark.parametrize(
    ("fields", "reason"), [*INVALID, ({"policy_id": "q"}, "unknown policy 'q'")]
)
def test_an_invalid_request_is_refused_with_a_trajectory(
    rig: Rig, fields: dict[str, Any], reason: str
) -> None:
    loop = rig.agents()
    rig.ask(
        RolloutRequest(**{"rollout_id": "r", "task": request().task, "policy_id": "p"} | fields)
    )
    ask(rig, "next")

    rig.settle(loop)

    refused = rig.events(RolloutRefused)[0].body
    assert refused.code == "refused"
    assert reason in refused.reason
    trajectory = rig.trajectories()[0]
    assert (trajectory.rollout_id, trajectory.status) == ("r", "refused")
    assert [call.rollout_id for call in calls(rig)] == ["next"]
    assert rig.log.all(rig.topics.dead_letters) == []


@pytest.mark.parametrize(
    ("fields", "reason"), [*INVALID, ({"policy_id": "q"}, "policy 'q' has no topic")]
)
def test_an_invalid_request_is_refused_before_it_is_published(
    rig: Rig, fields: dict[str, Any], reason: str
) -> None:
    values = {"rollout_id": "r", "task": WireTask(prompt="x"), "agent": "single_turn"}
    checks = RequestChecks(rig)

    checks.check(RolloutRequest(**values | {"policy_id": "p"}))
    with pytest.raises(Refused) as refused:
        checks.check(RolloutRequest(**values | {"rollout_id": "s", "policy_id": "p"} | fields))

    assert reason in str(refused.value)


def test_a_repeated_rollout_is_refused_with_the_first_ones_place(
    rig: Rig,
) -> None:
    agents, models = rig.agents(), rig.models(ScriptedEngine("p", lambda call: "yes"))
    ask(rig, "other")
    ask(rig, "r", run_id="run", group_id="g")
    rig.settle(agents, models)

    ask(rig, "r", run_id="run", group_id="g", agent="another_program")
    ask(rig, "next")
    rig.settle(agents, models)

    (refused,) = rig.events(RolloutRefused)
    assert (refused.rollout_id, refused.body.code) == ("r", "repeated")
    assert "asked for before, at 0@1 of t.rollout.requests" in refused.body.reason
    assert "submit --again" in refused.body.reason
    assert [c.rollout_id for c in calls(rig)] == ["other", "r", "next"]
    assert [(t.rollout_id, t.attempt, t.status) for t in rig.trajectories()] == [
        ("other", 1, "finished"),
        ("r", 1, "finished"),
        ("r", 0, "refused"),
        ("next", 1, "finished"),
    ]


def test_a_repeated_requests_end_is_not_the_rollouts_own(rig: Rig) -> None:
    """It belongs to no run and no group, and has no attempt; it is scored nevertheless."""
    loops = (
        rig.agents(), rig.models(ScriptedEngine("p", lambda call: "yes")), rig.rewards(),
    )  # fmt: skip
    for _ in range(3):
        ask(rig, "r", run_id="run", group_id="g")
        rig.settle(*loops)
    rig.commit(*loops)

    scored = [s.trajectory for s in rig.read(rig.topics.scored, ScoredTrajectory)]
    assert [(t.attempt, t.request and t.request.run_id) for t in scored] == [
        (1, "run"), (0, None), (0, None),
    ]  # fmt: skip
    assert audit(rig, drained=True).ok


def test_a_repeated_request_for_an_open_rollout_ends_it_once(rig: Rig) -> None:
    loop = rig.agents()
    ask(rig)
    rig.settle(loop)
    ask(rig)
    rig.settle(loop)
    answer(rig, calls(rig)[0])
    rig.settle(loop)

    assert len(calls(rig)) == 1
    assert [t.status for t in rig.trajectories()] == ["finished"]
    assert role_of(loop).owned[0].journal.ignored["already_open"] == 1


def test_a_repeated_request_is_recognised_after_a_takeover(
    rig: Rig,
) -> None:
    first, models = rig.agents("a1"), rig.models(ScriptedEngine("p", lambda call: "yes"))
    for n in range(3):
        ask(rig, f"r{n}")
    rig.settle(first, models)
    rig.commit(first)
    killed(first)

    second = rig.agents("a2")
    for name in ("r1", "new", "r0"):
        ask(rig, name)
    rig.settle(second, models)

    assert [e.rollout_id for e in rig.events(RolloutRefused)] == ["r1", "r0"]
    starts = rig.events(RolloutStarted)
    assert [e.rollout_id for e in starts] == ["r0", "r1", "r2", "new"]
    spans = [(e.body.from_offset, e.body.request_offset) for e in rig.read(rig.topics.events, Event)
             if isinstance(e.body, RolloutStarted | RolloutRefused)]  # fmt: skip
    assert spans == [(n, n) for n in range(6)]


def test_requests_wait_until_earlier_request_keys_are_read_back(rig: Rig) -> None:
    first = rig.agents("a1")
    ask(rig, "r0")
    rig.settle(first)
    rig.commit(first)
    killed(first)
    second = rig.agents("a2")
    look_back = role_of(second)._look_back
    role_of(second)._look_back = lambda: None
    for name in ("r1", "r0"):
        ask(rig, name)
    rig.log.append(rig.topics.requests, b"bad", b"no magic", 0)
    rig.settle(second)
    assert len(rig.log.all(rig.topics.events)) == 1

    role_of(second)._look_back = look_back
    ask(rig, "r2")
    rig.settle(second)

    refused = [(e.rollout_id, e.body.code) for e in rig.events(RolloutRefused)]
    assert refused == [("r0", "repeated"), ("bad", "unreadable")]
    assert [e.rollout_id for e in rig.events(RolloutStarted)] == ["r0", "r1", "r2"]


def test_request_keys_of_foreign_producers_need_not_be_ids(rig: Rig) -> None:
    loop = rig.agents()
    for rollout_id in ("a", "b", "a"):
        rig.write(rig.topics.requests, "its own key", request(rollout_id, ASKS), 0)
    rig.settle(loop)

    assert [e.rollout_id for e in rig.events(RolloutStarted)] == ["a", "b"]
    assert [e.rollout_id for e in rig.events(RolloutRefused)] == ["a"]


def test_a_replayed_dead_letter_is_no_repetition(rig: Rig) -> None:
    loop = rig.agents()
    rig.log.append(rig.topics.requests, b"r", b"no magic", 0)
    rig.settle(loop)

    value = rig.codec.encode(rig.topics.requests, request("r", ASKS))
    send_again(rig.log, rig.topics.dead_letters, rig.topics.requests, b"r", value)
    rig.settle(loop)

    assert [c.rollout_id for c in calls(rig)] == ["r"]


def test_a_request_with_a_false_replay_header_is_a_repetition(rig: Rig) -> None:
    loop = rig.agents()
    ask(rig, "r")
    value = rig.codec.encode(rig.topics.requests, request("r", ASKS))
    send_again(rig.log, rig.topics.dead_letters, rig.topics.requests, b"other", value)
    claimed = rig.log.all(rig.topics.requests)[-1].headers
    rig.settle(loop)
    rig.log.append(rig.topics.requests, b"r", value, 0, claimed)
    rig.log.append(
        rig.topics.requests, b"r", value, 0, [("dlq_replayed_from", b"0@" + b"9" * 5000)]
    )
    rig.settle(loop)

    assert [e.body.code for e in rig.events(RolloutRefused)][-2:] == ["repeated", "repeated"]


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_one_id_in_two_partitions_gives_one_rollout_and_one_refusal(order: tuple[int, int]) -> None:
    """If one worker owns both partitions and has read the first."""
    rig = Rig(partitions=2)
    loop = rig.agents()
    for partition in order:
        rig.ask(request("r", ASKS), partition)
        rig.settle(loop)
        rig.clock.pass_by(0.001)

    (started,), (refused,) = rig.events(RolloutStarted), rig.events(RolloutRefused)
    assert f"at {order[0]}@0" in refused.body.reason
    assert started.body.request_offset == refused.body.request_offset == 0
    assert [c.answer_partition for c in calls(rig)] == [order[0]]


def test_an_id_in_two_partitions_is_never_refused_in_both() -> None:
    """A crash lost the start of the first, and not the refusal of the second."""
    rig = Rig(partitions=2)
    first = rig.agents("a1")
    rig.ask(request("r", ASKS), 0)
    rig.clock.pass_by(0.001)
    rig.ask(request("r", ASKS), 1)
    body = RolloutRefused("repeated", "at 0@0", 0, 0)
    rig.write(rig.topics.events, "r", Event.decision("r", 0, "a0", body), 1)
    rig.log.group("t.agents").committed[rig.topics.requests, 1] = 1, ""
    rig.settle(first)

    assert [e.rollout_id for e in rig.events(RolloutStarted)] == ["r"]
    assert len(rig.events(RolloutRefused)) == 1


def test_an_unreadable_request_is_buried_and_refused(rig: Rig) -> None:
    rig.log.append(rig.topics.requests, b"r1", b"no magic", 0)
    rig.log.append(rig.topics.requests, None, b"no magic", 0)
    ask(rig, "next")
    loop = rig.agents()

    rig.settle(loop)
    rig.commit(loop)

    assert [e.rollout_id for e in rig.events(RolloutRefused)] == ["r1", "unreadable-0-1"]
    assert [t.code for t in rig.trajectories()] == ["unreadable", "unreadable"]
    assert [t.request for t in rig.trajectories()] == [None, None]
    assert len(rig.log.all(rig.topics.dead_letters)) == 2
    assert [call.rollout_id for call in calls(rig)] == ["next"]
    assert rig.committed("t.agents", rig.topics.requests) == 3


def test_an_unreadable_journal_entry_is_buried_and_skipped(rig: Rig) -> None:
    ask(rig)
    loop = rig.agents()
    rig.settle(loop)

    rig.log.append(rig.topics.events, b"r", b"no magic", 0)
    answer(rig, calls(rig)[0])
    rig.settle(loop)
    rig.commit(loop)

    assert rig.trajectories()[0].status == "finished"
    assert rig.committed("t.agents", rig.topics.events) == 4


def test_a_call_for_a_policy_without_a_topic_fails_visibly(rig: Rig) -> None:
    def elsewhere(task: Task) -> Agent:
        yield CallModel([user("x")], policy_id="absent")

    loop = rig.agents(programs=lambda name: elsewhere)
    ask(rig)

    rig.settle(loop)

    failed = rig.events(CallFailed)[0].body
    assert (failed.code, failed.retriable) == ("unknown_policy", False)
    assert rig.trajectories()[0].code == "unknown_policy"


def test_an_oversized_command_fails_and_the_program_sees_it(rig: Rig) -> None:
    def verbose(task: Task) -> Agent:
        yield CallModel([user("x" * 1_100_000)])

    loop = rig.agents(programs=lambda name: verbose)
    ask(rig)

    rig.settle(loop)

    assert rig.events(CallFailed)[0].body.code == "too_large"
    assert rig.trajectories()[0].code == "too_large"


def test_an_oversized_trajectory_is_written_bare(rig: Rig) -> None:
    def long(task: Task) -> Agent:
        messages = []
        for _ in range(3):
            messages.append(user("x" * 350_000))
            answer = yield CallModel(messages)
            messages.append(answer.message)

    loop = rig.agents(programs=lambda name: long)
    ask(rig)
    rig.settle(loop)
    for n in range(3):
        call = calls(rig)[n]
        answer(rig, call, replace(said(call, "yes"), added_ids=b""))
        rig.settle(loop)

    trajectory = rig.trajectories()[0]
    assert (trajectory.status, trajectory.code) == ("finished", "too_large")
    assert (trajectory.sequences, trajectory.steps) == (None, None)
    assert trajectory.model_calls == 3


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
